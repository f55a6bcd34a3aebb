"""Stands in for the library: the methods that are called of it, as its MultiTurnEnv and Rubric have them."""

from verifiers.types import AssistantMessage


class Rubric:
    async def score_rollout(self, state):
        said = [message.content for message in state["completion"] if isinstance(message, AssistantMessage)]
        state["reward"] = float(said[-1].strip() == state["input"]["answer"]) + 0.5 * (len(said) == 1)


class MultiTurnEnv:
    def __init__(self, rows, max_turns):
        self.rows, self.max_turns, self.rubric = rows, max_turns, Rubric()

    def get_dataset(self):
        return self.rows

    async def init_state(self, row, client, model, sampling_args):
        return {
            "input": row, "prompt": row["prompt"], "trajectory": [], "trajectory_id": "0", "completion": None,
            "reward": None, "final_env_response": None,
        }  # fmt: skip

    async def setup_state(self, state):
        state["tries"] = 0

    async def is_completed(self, state):
        return len(state["trajectory"]) >= self.max_turns or state["final_env_response"] is not None

    async def get_prompt_messages(self, state):
        if not state["trajectory"]:
            return state["prompt"]
        last = state["trajectory"][-1]
        messages = [*last["prompt"], *last["completion"]]
        return [*messages, *await self.env_response(messages, state)]

    async def add_trajectory_step(self, state, step):
        state["trajectory"].append(step)

    async def cleanup(self, state):
        if not state["trajectory"]:
            return
        last = state["trajectory"][-1]
        state["completion"] = [*last["prompt"], *last["completion"]][len(state["prompt"]) :]


class Doubling(MultiTurnEnv):
    """Ends with the right double, and says after how many tries another one came."""

    async def env_response(self, messages, state):
        if messages[-1].content == "break":
            raise RuntimeError("it broke")
        state["tries"] += 1
        if messages[-1].content.strip() == state["input"]["answer"]:
            state["final_env_response"] = [{"role": "user", "content": "Right."}]
            return state["final_env_response"]
        return [{"role": "user", "content": [{"type": "text", "text": f"No, {state['tries']}."}]}]


def load_environment(max_turns=4, tools=False):
    system = {"role": "system", "content": "Double it."}
    prompts = [[system, {"role": "user", "content": str(number)}] for number in range(6)]
    rows = [{"prompt": prompt, "answer": str(2 * number)} for number, prompt in enumerate(prompts)]
    made = Doubling(rows, max_turns)
    if tools:
        made.tool_defs = ["double"]
    return made
