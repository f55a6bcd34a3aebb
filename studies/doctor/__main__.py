"""`python -m studies.doctor`"""

import sys
from pathlib import Path

from studies.doctor.corpus import make_corpus, read_corpus
from studies.map.kept import KeptRuns

make_corpus(read_corpus(), KeptRuns(Path("studies/kept/doctor.jsonl")), Path(sys.argv[1]))
