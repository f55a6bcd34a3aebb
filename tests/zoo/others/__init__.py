"""Stand-ins for modules of other projects, under which their tests judge our code: `tests/zoo/suites.py`."""
