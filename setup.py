"""Says what pyproject.toml cannot: packages below src/, one of them in Hydra's namespace, and the top-level
conf/ as `bapo_lightning.conf`.
"""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages("src"), "hydra_plugins.bapo_lightning", "bapo_lightning.conf"],
    package_dir={"": "src", "bapo_lightning.conf": "conf"},
    package_data={
        "bapo_lightning.conf": ["**/*.yaml"],
        "bapo_lightning": ["py.typed", ".agents/skills/*/SKILL.md"],  # .agents is a link to the clone's
        "bapo_lightning.tools.comparison": ["templates/*"],
        "bapo_lightning.tools.page": ["templates/*"],
        "bapo_lightning.report.run": ["recorded/*.json"],
        "bapo_lightning.tools.view": ["templates/*"],
        "bapo_lightning.tools.rehearsal": ["problems.jsonl"],
        "bapo_lightning.tiny_worlds": ["*/model/*"],
    },
)
