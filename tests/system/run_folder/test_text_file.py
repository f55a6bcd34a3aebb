"""Files are replaced whole or not at all; journals that grow are read once."""

import json
from hashlib import sha256

import pytest

from bapo_lightning.report.intervals import Interval
from bapo_lightning.system.run_folder.journal import Journal, JournalDigest
from bapo_lightning.system.run_folder.text_file import write_csv, write_json


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "new" / "summary.json"
    assert write_json(path, {"updates": 3}) == path
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"updates": float("nan")})
    assert json.loads(path.read_text()) == {"updates": 3}
    assert list(path.parent.iterdir()) == [path]


def test_a_dataclass_is_an_object(tmp_path):
    path = write_json(tmp_path / "a.json", [Interval(0.5, None, 1)])
    assert json.loads(path.read_text()) == [{"mean": 0.5, "half_width": None, "count": 1}]
    with pytest.raises(TypeError, match="has no form in JSON"):
        write_json(path, {1, 2})


def test_a_table_has_a_header_and_empty_cells_for_what_is_unknown(tmp_path):
    path = write_csv(tmp_path / "a.csv", ("name", "mean"), [("x, y", 0.5), ("z", None)])
    assert path.read_text() == 'name,mean\n"x, y",0.5\nz,\n'


def test_what_was_read_before_is_not_read_again_and_counts_all_the_same(tmp_path):
    journal, digest = Journal(tmp_path / "rows.jsonl"), JournalDigest(tmp_path / "rows.jsonl")
    assert digest.read_on() == {"bytes": 0, "sha256": sha256(b"").hexdigest()}
    for number in range(3):
        journal.append([{"row": number}])
        content = journal.path.read_bytes()
        assert digest.read_on() == {"bytes": len(content), "sha256": sha256(content).hexdigest()}


def test_a_beginning_has_a_digest_of_its_own(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"0123456789")
    assert JournalDigest(path).read_on(4) == {"bytes": 4, "sha256": sha256(b"0123").hexdigest()}
