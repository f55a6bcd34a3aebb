"""House rules that a machine can check: nothing unfinished, and nothing of one machine alone."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "conf", "studies", "tests", "scripts", "bench", "docs", ".ci")
MAX_TRAINING_STEP_LINES = 40
MAX_ALGORITHM_LINES = 15

# Written so that the patterns do not match themselves.
UNFINISHED = re.compile(r"\b(T[O]DO|F[I]XME|X[X]X|NotImplemented[E]rror)\b")
SWITCHED_OFF = re.compile(r"\b(pytest\.(mark\.)?(skip|skipif|xfail|importorskip)|unittest\.skip\w*)\b")
MACHINE_PATH = re.compile(r"(?<![\w.$}{:/-])/(home|Users|root|work|mnt|srv|scratch|opt)/\w")


def texts():
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")] + list(ROOT.glob("*"))
    binary = {".safetensors", ".png", ".pyc"}
    return {
        str(path.relative_to(ROOT)): path.read_text()
        for path in files
        if path.is_file() and path.suffix not in binary and ".egg-info" not in str(path)
    }


TEXTS = texts()
PYTHON = {name: text for name, text in TEXTS.items() if name.endswith(".py")}


def functions(text):
    """Name, first line and number of lines, docstring apart, of every function."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    return [(node.name, node.lineno, lines_of(node) - docstring_lines(node)) for node in found]


def docstring_lines(node):
    return lines_of(node.body[0]) if ast.get_docstring(node) is not None else 0


def lines_of(node):
    return (node.end_lineno or node.lineno) - node.lineno + 1


def matching_lines(pattern, files):
    return [
        f"{name}:{number}: {line.strip()}"
        for name, text in files.items()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_the_patterns_find_what_they_name():
    assert UNFINISHED.search("# TO" + "DO later") and UNFINISHED.search("raise NotImplemented" + "Error")
    assert SWITCHED_OFF.search("@pytest.mark." + "xfail")
    assert SWITCHED_OFF.search("pytest." + "importorskip('torch')")
    assert MACHINE_PATH.search("in /ho" + "me/someone/runs")
    assert not MACHINE_PATH.search("https://example.org/home/page")


def test_the_training_step_fits_on_a_screen():
    module = TEXTS["src/bapo_lightning/modules/bapo_module.py"]
    lengths = {name: length for name, _, length in functions(module)}
    assert lengths["training_step"] <= MAX_TRAINING_STEP_LINES


def test_an_algorithm_differs_from_the_base_in_at_most_15_lines():
    lengths = {
        name: sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in text.splitlines())
        for name, text in TEXTS.items()
        if name.startswith("conf/algorithm/") and not name.endswith("/base.yaml")
    }
    assert {name: length for name, length in lengths.items() if length > MAX_ALGORITHM_LINES} == {}


def test_nothing_is_marked_unfinished():
    assert matching_lines(UNFINISHED, PYTHON) == []


def test_no_test_is_switched_off():
    assert matching_lines(SWITCHED_OFF, PYTHON) == []


def test_no_file_names_a_path_of_one_machine():
    assert matching_lines(MACHINE_PATH, TEXTS) == []


def of(*folders):
    return [name for name in PYTHON if name.startswith(folders)]


def nodes(files):
    """Yields file:line and the node, of all nodes of the syntax trees of these files."""
    for name in files:
        yield from ((f"{name}:{getattr(n, 'lineno', 0)}", n) for n in ast.walk(ast.parse(PYTHON[name])))


def uses(node, name):
    return any(isinstance(part, ast.Attribute) and part.attr == name for part in ast.walk(node))


def test_json_lines_end_at_newlines_alone():
    """`str.splitlines` also divides at U+2028, U+0085 and form feeds, which JSON allows within a text."""
    loops = ast.For | ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp
    files = [name for name in PYTHON if not name.startswith("tests/") and "splitlines" in PYTHON[name]]
    assert not [
        place
        for place, node in nodes(files)
        if isinstance(node, loops) and uses(node, "splitlines") and uses(node, "loads")
    ]


def test_the_first_or_last_of_no_lines_is_not_asked_for():
    """The message of an error may have no line: `errors.first_line` and `last_line` name its type then."""
    found = ((place, n) for place, n in nodes(of("src/")) if isinstance(n, ast.Subscript))
    single = ((place, n) for place, n in found if not isinstance(n.slice, ast.Slice))
    assert not [place for place, n in single if ast.unparse(n.value).endswith(".splitlines()")]


def test_what_a_trainer_of_ones_own_reaches_prints_whole_lines():
    """By `printable.say`: rich's bar in a notebook repeats a text that ends within a line without end."""
    rooms = (
        "callbacks", "data", "modules", "system/pretrained.py", "rewards", "rollout", "system/run_folder",
        "runs/inputs.py",
    )  # fmt: skip
    calls = nodes(of(*(f"src/bapo_lightning/{room}" for room in rooms)))
    assert not [place for place, n in calls if isinstance(n, ast.Call) and ast.unparse(n.func) == "print"]
