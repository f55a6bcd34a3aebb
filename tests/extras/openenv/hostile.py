"""A world whose server breaks the protocol. The first part of a path says how, and when: `reset-MODE` from
the first question on, `step-MODE` at actions, `some-MODE` at one action of five.
"""

import asyncio
import json
import random
import zlib

from tests.system.peers.hostile import Hostile, frame, upgrade

BEGIN, GOOD = "12+3=", {"text": "a"}


def seen(observation=GOOD, reward=0.5, done=False):
    """An answer, with the observation, the reward and the end as they are written in JSON, if as texts."""
    parts = [part if isinstance(part, str) else json.dumps(part) for part in (observation, reward, done)]
    fields = zip(("observation", "reward", "done"), parts, strict=True)
    data = ", ".join(f'"{name}": {value}' for name, value in fields)
    return f'{{"type": "observation", "data": {{{data}}}}}'


def trouble(**data):
    return json.dumps({"type": "error", "data": data})


# Answers that are none, and no value of which may be used.
SAID = {
    "observation_null": seen("null"), "observation_list": seen("[1]"), "observation_text": seen('"x"'),
    "observation_number": seen("5"), "observation_missing": '{"type": "observation", "data": {"reward": 1}}',
    "data_list": '{"type": "observation", "data": [1]}', "data_null": '{"type": "observation", "data": null}',
    "data_missing": '{"type": "observation"}', "type_other": seen().replace("observation", "state", 1),
    "type_missing": seen().replace('"type": "observation", ', ""),
    "type_of_an_error": seen().replace("observation", "error", 1),
    "trouble_as_observation": trouble(code="X", message="m").replace("error", "observation", 1),
    "list": "[1, 2]", "number": "7", "null": "null", "html": "<html>", "blank": " ", "torn": seen()[:-1],
    "two": seen() * 2, "deep": seen("[" * 200_000 + "]" * 200_000),
    "deep_observation": seen('{"text": ' + '{"a": ' * 900 + "1" + "}" * 901),
    "half_character": seen('{"text": "12+3=\\ud800"}'),
    "half_character_in_a_name": seen('{"\\udc00": "12+3="}'),
    "text_of_2_megabytes": seen({"text": "7" * (2 << 20)}),
    "text_of_20_megabytes": seen({"text": "7" * (20 << 20)}), "observation_nan": seen('{"text": NaN}'),
    "observation_infinite": seen('{"text": [1e999]}'),
    **{f"reward_{name}": seen(reward=text) for name, text in {"nan": "NaN", "infinity": "Infinity",
     "minus": "-Infinity", "1e999": "1e999", "1e308": "1e308", "nan_text": '"nan"', "text": '"5"',
     "true": "true", "list": "[1]", "object": "{}", "400": "9" * 400, "6000": "8" * 6000}.items()},
    **{f"done_{name}": seen(done=text) for name, text in {"text": '"false"', "null": "null", "0": "0",
     "1": "1", "list": "[]"}.items()},
    "trouble_list": '{"type": "error", "data": [1]}', "trouble_without_words": trouble(code="X"),
    "trouble_null": trouble(code="X", message=None), "trouble_code": trouble(code=["X"], message="m"),
    "trouble_errors": trouble(code="X", message="m", errors={"a": 1}),
    "trouble_error": trouble(code="X", message="m", errors=["x"]),
    "trouble_place": trouble(code="X", message="m", errors=[{"loc": 5, "msg": "x"}]),
    **{f"trouble_of_{size}_megabytes": trouble(code="X", message="y" * (size << 20)) for size in (2, 20)},
    "trouble_factory": trouble(code="FACTORY_ERROR", message="no"),
}  # fmt: skip
# Odd answers that are right.
HARMLESS = {
    "reward_integer": seen(reward=1), "reward_null": seen(reward="null"),
    "more_fields": seen().replace('"reward"', '"metadata": {"x": [1]}, "reward"'),
    "control_characters": seen({"text": "\x1b]0;x\x07\u202e\x00"}),
    "many_fields": seen({**GOOD, **{f"k{number}": "" for number in range(50_000)}}),
    "large_integer": seen('{"text": ' + "7" * 400 + "}"), "slow": None, "one_ping": None,
}  # fmt: skip
REFUSED = {"refused": trouble(code="EXECUTION_ERROR", message="no")}  # what may be said, but not to a reset
# Servers whose frames, and not what these say, are wrong; each gets the writer.
BOMB = zlib.compressobj(wbits=-15)
FRAMES = {
    "mute": b"", "bytes": frame(b"\0\1\2", 2), "no_utf8": frame(b"\xff\xfe{"), "masked": b"\x81\x85abcd12345",
    "odd_code": frame(b"x", 5), "lie": frame(b"{", length=1 << 62), "long": frame(b"x" * (17 << 20)),
    "bomb": frame((BOMB.compress(b"0" * (100 << 20)) + BOMB.flush(zlib.Z_SYNC_FLUSH))[:-4], first=0xC0),
    "close": frame(b"\x03\xe8", 8), "odd_close": frame(b"\x00", 8),
}  # fmt: skip
FLOODS = {
    "answers": frame(seen().encode()), "megabytes": frame(seen({"text": "x" * (1 << 20)}).encode()),
    "pings": frame(b"x" * 100, 9), "pongs": frame(b"", 10), "fragments": frame(b" " * (1 << 20), 0, first=0),
}  # fmt: skip
ENDLESS = ("drip", "gone", "double", "double_later", "banner", "deaf_to_close", "chatter_at_close")
MODES = [*SAID, *FRAMES, *FLOODS, *ENDLESS]
# Of what shows only between two answers, the first answer is right.
AFTERWARDS = ("double", "double_later", "answers", "megabytes")
AT_CLOSE = ("deaf_to_close", "chatter_at_close")
AT_OPENING = ("redirect", "hang", "html", "headers", "drip", "silent_end", "bad_status", "login")


class HostileWorld(Hostile):
    """Rewards are 0.5 at every action, and the third ends the episode."""

    def __init__(self):
        super().__init__()
        self.dice, self.lapses, self.questions = random.Random(0), 0, []

    async def talk(self, path, key, reader, writer):
        when, mode = path.split("/")[0].split("-")
        writer.write(upgrade(key, "Sec-WebSocket-Extensions: permessage-deflate\r\n" * (mode == "bomb")))
        if (mode, when) == ("banner", "reset"):
            writer.write(frame(trouble(code="X", message="welcome").encode()))
        steps = 0
        while True:
            code, message = await received(reader)
            question = json.loads(message) if code == 1 else {"type": "close" if code == 8 else "other"}
            if question["type"] == "close":
                if mode == "deaf_to_close":
                    continue
                while mode == "chatter_at_close" and not writer.is_closing():
                    await sent(writer, FLOODS["answers"])
                await sent(writer, frame(b"\x03\xe8", 8))
                return
            if question["type"] not in ("reset", "step"):
                continue
            self.questions.append(question)
            steps = 0 if question["type"] == "reset" else steps + 1
            at_step = steps > 0 and (when == "step" or (when == "some" and self.dice.random() < 0.2))
            misbehaves = when == "reset" or at_step
            right = seen({"text": BEGIN}, "null") if steps == 0 else seen(done=steps == 3)
            self.lapses += misbehaves
            if not misbehaves:
                await sent(writer, frame(right.encode()))
            elif await self.misbehaved(mode, right, writer) == "gone":
                return

    async def misbehaved(self, mode, right, writer):
        """Answers a question in the way of a mode."""
        right = frame(right.encode())
        if said := SAID.get(mode) or REFUSED.get(mode) or HARMLESS.get(mode):
            await sent(writer, frame(said.encode()))
        elif mode in FRAMES:
            await sent(writer, FRAMES[mode])
        elif mode in FLOODS:
            await sent(writer, right * (mode in AFTERWARDS))
            while not writer.is_closing():
                await sent(writer, FLOODS[mode])
        elif mode == "drip":
            await sent(writer, frame(b"", length=1 << 20))
            while not writer.is_closing():
                await sent(writer, b" ")
                await asyncio.sleep(0.1)
        elif mode == "gone":
            writer.transport.abort()
            return "gone"
        else:
            stale = frame(seen({"text": "STALE"}, 0.25).encode())
            await asyncio.sleep(0.2 if mode == "slow" else 0)
            before, behind = {"one_ping": (frame(b"", 9), b""), "double": (b"", stale)}.get(mode, (b"", b""))
            await sent(writer, before + right + behind)
            if mode == "double_later":
                await asyncio.sleep(0.05)
                await sent(writer, stale)
        return ""


async def sent(writer, data):
    if writer.is_closing():
        raise ConnectionError
    writer.write(data)
    await writer.drain()
    await asyncio.sleep(0)  # drain does not let others run while there is room


async def received(reader):
    """Code and content of the next frame of a client, which masks them."""
    first, second = await reader.readexactly(2)
    length = second & 127
    if length > 125:
        length = int.from_bytes(await reader.readexactly(2 if length == 126 else 8), "big")
    mask, data = await reader.readexactly(4), await reader.readexactly(length)
    return first & 15, bytes(value ^ mask[place & 3] for place, value in enumerate(data))
