"""An environment of verifiers 0.4 for `harness.py`: two tries to say the word, of which the first is worth
half as much again.
Its own code plays the user, as games do.
"""

import verifiers.v1 as vf
from vf_words import WordsTaskset

__all__ = ["GuessEnv", "GuessTaskset"]


class GuessTaskset(WordsTaskset):
    pass


class GuessEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GuessEnv(vf.Env[GuessEnvConfig]):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        word, tries = task.data.word, 0
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while word not in segment.last_reply and tries < 1:
                tries += 1
                segment = await interaction.turn("again")
        interaction.trace.record_reward("at_once", 0.5 * (word in segment.last_reply and not tries), 1.0)
