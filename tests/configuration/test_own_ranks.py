"""A class of one's own that starts the ranks of a run elsewhere."""

from tests.commands import run_command
from tests.configuration.compositions import found

OWN = "+ranks._target_=tests.configuration.test_own_ranks.Elsewhere"


class Elsewhere:
    """Starts nothing, and is too far away for a lone device."""

    def __init__(self, least=1):
        self.least = least

    def run_problems(self, config):
        if config.devices < self.least:
            yield f"ranks.least={self.least}: write trainer.devices={self.least}"

    def launch(self, config, arguments):
        print(config.name, arguments)
        return 7


def test_it_may_refuse_a_run_and_its_options_are_checked():
    assert found(OWN) == []
    assert found(OWN, "+ranks.least=2") == ["ranks.least=2: write trainer.devices=2"]
    assert "ranks.most is not an option of" in found(OWN, "+ranks.most=2")[0]


def test_it_gets_the_arguments_and_its_exit_code_is_the_commands(tmp_path):
    done = run_command("bapo_lightning.cli.train", OWN, f"run_folder={tmp_path / 'run'}")
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout == f"quickstart {[OWN, f'run_folder={tmp_path}/run']}\n"
    assert not (tmp_path / "run").exists()
