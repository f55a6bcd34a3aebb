"""The probe against right, stale, half-loaded and wrong servers, in every precision that servers have."""

import copy
import json
import shutil
import time

import pytest
import torch
from tests.commands import run_command
from tests.tools.probe.conftest import OTHER, TRAINED, loaded, moved

from bapo_lightning.tools.commands.probe import main
from bapo_lightning.tools.probe.exports import newest_export

FEW = ("--prompts", "6", "--sampled", "4")
FEWEST = ("--prompts", "1", "--tokens", "4", "--sampled", "1", "--dtype", "bfloat16")


@pytest.fixture
def probe(url, capsys):
    """Probes the server; returns exit code, the only line of JSON, and the diagnosis in it."""

    def probed(*arguments, address=url):
        code = main([address, *arguments, "--json"])
        found = json.loads(capsys.readouterr().out)
        return code, found, found["diagnosis"]

    return probed


def half(new, old, names):
    """A model of `new` whose weights with one of these texts in their names are of `old`, or zero."""
    model, other = loaded(new), dict(loaded(old).named_parameters()) if old else {}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if any(text in name for text in names):
                weight.copy_(other.get(name, torch.zeros(())))
    return model


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_server_with_the_weights_matches_in_its_own_precision(dtype, served, probe):
    served.model = loaded(TRAINED, getattr(torch, dtype))
    code, found, made = probe(TRAINED, *FEW)
    assert (code, made["verdict"], made["dtype"]) == (0, "matches", dtype)
    assert made["gaps"][dtype]["prompt"]["num_tokens"] == found["num_scored"] > 6 * 31
    assert found["num_sampled"] == 4 * found["num_prompts"]


def test_a_precision_that_is_named_is_held_to(served, probe):
    served.model = loaded(TRAINED, torch.bfloat16)
    assert [probe(TRAINED, "--dtype", name, *FEW)[0] for name in ("bfloat16", "float32")] == [0, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_stale_server_is_recognised_by_the_export_before(dtype, old, served, probe):
    served.model = loaded(old, dtype)
    code, _, made = probe(TRAINED, "--also", old, *FEW)
    assert (code, made["verdict"]) == (1, "stale") and old in made["reason"]
    code, _, made = probe(TRAINED, *FEW)
    assert (code, made["verdict"]) == (1, "differs")


def test_a_small_step_is_detected_below_rounding(near, served, probe):
    """The two differ by a third of what bfloat16 does, which hides it from any tolerance."""
    served.model = loaded(near, torch.bfloat16)
    code, _, made = probe(TRAINED, "--also", near, "--dtype", "bfloat16")
    assert (code, made["verdict"]) == (1, "stale")
    gap, place = made["gaps"]["bfloat16"]["prompt"], made["positions"][near]
    assert gap["mean"] < 2 * gap["rounding_mean"] and place["apart"] < gap["rounding_mean"]
    served.model = loaded(TRAINED, torch.bfloat16)
    assert probe(TRAINED, "--also", near, "--dtype", "bfloat16")[0] == 0


def test_more_than_rounding_is_no_match_without_the_export_before(tmp_path, served, probe):
    old = moved(TRAINED, tmp_path / "old", 7e-3)
    served.model = loaded(old, torch.bfloat16)
    code, _, made = probe(TRAINED, "--dtype", "bfloat16")
    gap = made["gaps"]["bfloat16"]["prompt"]
    assert 1.3 < gap["mean"] / gap["rounding_mean"] < 2
    assert (code, made["verdict"]) == (1, "undecided")
    assert "give the export before by --also" in made["reason"]
    assert probe(TRAINED, "--dtype", "bfloat16", "--also", old)[2]["verdict"] == "stale"


def test_too_few_tokens_are_no_verdict(near, served, probe):
    served.model = loaded(near, torch.bfloat16)
    code, _, made = probe(TRAINED, "--also", near, *FEWEST)
    assert (code, made["verdict"]) == (1, "undecided")


def test_equal_weights_are_not_distinguished(tmp_path, probe):
    again = shutil.copytree(TRAINED, tmp_path / "again")
    code, _, made = probe(TRAINED, "--also", str(again), *FEW)
    assert (code, made["positions"][str(again)]["apart"]) == (0, 0.0)


@pytest.mark.parametrize(("names", "told"), [
    (["layers.1.", "model.norm"], "layer 1 to the last norm and head"), (["embed"], "embeddings"),
    (["layers.0."], "layer 0"),
])  # fmt: skip
def test_a_half_loaded_server_is_reported_with_its_parts(names, told, old, served, probe):
    served.model = half(TRAINED, old, names)
    code, _, made = probe(TRAINED, "--also", old, *FEW)
    assert (code, made["verdict"]) == (1, "partial")
    assert made["reason"] == f"{told} of it are of {old}; the rest is of this folder"


def with_nan():
    model = loaded(TRAINED)
    with torch.no_grad():
        next(model.parameters())[3] = torch.nan
    return model


# What is set of a server, given an older export, the verdict on it, and words of its reason.
FAULTS = {
    "a layer was never loaded": (lambda old: {"model": half(TRAINED, None, ["layers.1."])}, "partial",
                                 "layer 1 of it are of nothing: they were never loaded"),
    "numbers are not finite": (lambda old: {"sampler": loaded(TRAINED), "model": with_nan()}, "differs",
                               "are not finite"),
    "a stale prefix cache": (lambda old: {"sampler": loaded(old)}, "processed", "prefix cache"),
    "another temperature": (lambda old: {"prompt_temperature": 0.8}, "processed",
                            "prompt tokens are of temperature 0.80, not 1"),
    "a smaller vocabulary": (lambda old: {"known": 9}, "differs", "out of vocabulary"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_reported_without_another_folder(fault, old, served, probe):
    changes, verdict, words = FAULTS[fault]
    vars(served).update(changes(old))
    code, _, made = probe(TRAINED, *FEW)
    assert (code, made["verdict"]) == (1, verdict) and words in made["reason"]


def test_a_wrong_server_is_neither(old, served, probe):
    served.model = loaded(OTHER)
    code, _, made = probe(TRAINED, "--also", old, *FEW)
    assert (code, made["verdict"]) == (1, "differs")


def test_log_probs_before_temperature_are_noted(served, probe):
    assert probe(TRAINED, "--temperature", "0.5", *FEW)[1]["notes"] == []
    served.is_raw = True
    code, found, _ = probe(TRAINED, "--temperature", "0.5", *FEW)
    assert code == 0 and "before temperature 0.5" in found["notes"][0]


def test_a_server_without_vllms_fields_is_asked_without_them(served, probe):
    served.is_vllm = False
    code, found, _ = probe(TRAINED, *FEW)
    assert code == 0 and "unknown fields" in found["notes"][0]
    assert found["num_sampled"] > 0, "tokens are read from their texts"


def test_a_server_that_scores_no_prompts_is_judged_by_what_it_samples(old, served, probe):
    served.echoes = False
    code, found, _ = probe(TRAINED, *FEW)
    assert (code, found["num_scored"]) == (0, 0) and found["num_sampled"] > 0
    served.model = loaded(old)
    assert probe(TRAINED, *FEW)[0] == 1


def test_a_server_with_a_short_context_gets_short_prompts(served, probe):
    served.context = 24
    code, found, _ = probe(TRAINED, "--prompts", "4")
    assert code == 0 and found["num_scored"] > 0
    prompts = [prompt for body in served.bodies for prompt in body["prompt"]]
    assert max(len(prompt) for prompt in prompts if not isinstance(prompt, str)) == 24 - 16


def test_another_tokenizer_is_noted(served, probe):
    own = served.tokenizer
    served.tokenizer = lambda text: {"input_ids": own(text)["input_ids"][::-1]}
    served.tokenizer.decode = own.decode
    code, found, _ = probe(TRAINED, *FEW)
    assert code == 0 and "makes other tokens of 4 of 4 texts" in found["notes"][0]


def test_a_folder_without_a_tokenizer_is_probed_with_random_tokens(tmp_path, probe):
    loaded(TRAINED).save_pretrained(tmp_path)
    code, found, _ = probe(str(tmp_path), *FEW)
    assert code == 0 and "has no tokenizer" in found["notes"][0] and found["num_prompts"] == 6


def test_requests_leave_nothing_to_the_servers_defaults(served, probe):
    probe(TRAINED, *FEW)
    neutral = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    for body in served.bodies:
        assert {key: body[key] for key in neutral} == neutral and body["model"] == "policy"


@pytest.mark.parametrize(("arguments", "told"), [
    (["http://127.0.0.1:9", TRAINED], "does not answer"),
    (["ftp://127.0.0.1", TRAINED], "write http://HOST:PORT"),
    (["http://127.0.0.1:9", TRAINED, "--api-key-from", "NO_SUCH_KEY"], "this variable is not set"),
    (["http://127.0.0.1:9", TRAINED, "--device", "gpu7"], "--device=gpu7 cannot be used"),
])  # fmt: skip
def test_what_cannot_be_probed_is_refused_in_words(arguments, told, capsys):
    assert main(arguments) == 2
    assert told in capsys.readouterr().err


def test_folders_that_cannot_be_read_are_refused_in_words(tmp_path, url, capsys):
    (tmp_path / "adapter_config.json").write_text("{}")
    assert main([url, str(tmp_path)]) == 2 and "LoRA adapter" in capsys.readouterr().err
    assert main([url, str(tmp_path / "gone")]) == 2 and "FOLDER=" in capsys.readouterr().err


def test_the_table_shows_every_precision_and_the_verdict(old, url, capsys):
    assert main([url, TRAINED, "--also", old, *FEW]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {dtype:<10}sampled" in shown for dtype in ("float32", "float16", "bfloat16"))
    assert f"of the way to {old}" in shown and shown.splitlines()[-1].startswith("matches: ")


def test_each_sync_is_probed_and_a_missing_one_is_reported(tmp_path, served, url, capsys, monkeypatch):
    """The second export reaches the server a moment late, the third not at all."""
    folders = [tmp_path / "out" / f"checkpoint-{number}" for number in range(3)]
    folders[0].parent.mkdir()

    def training():
        for number, folder in enumerate(folders):
            moved(TRAINED, tmp_path / folder.name, 0.05 * number)
            (tmp_path / folder.name).rename(folder)
            if number == 0:
                served.model = loaded(folder)
            yield  # the command sees the export
            yield  # it is whole, and the server is asked
            if number == 1:
                served.model = loaded(folder)
                yield

    steps = training()
    monkeypatch.setattr(time, "sleep", lambda seconds: next(steps, None))
    watch = ("--watch", "3", "--every", "0.1", "--grace", "8", "--dtype", "float32")
    assert main([url, str(folders[0].parent), *watch, *FEW]) == 1
    told = [line.split()[1:3] for line in capsys.readouterr().out.splitlines()]
    assert told == [[word, str(f)] for word, f in zip(("matches", "matches", "stale"), folders, strict=True)]


@pytest.mark.parametrize(("arrives", "told"), [(False, "stale"), (True, "undecided")])
def test_an_answer_as_before_is_stale_where_rounding_hides_it(
    arrives, told, near, tmp_path, served, url, capsys, monkeypatch
):
    """A server that took the weights answers otherwise, also when it is asked several times."""
    first, second = tmp_path / "out" / "checkpoint-1", tmp_path / "out" / "checkpoint-2"
    first.parent.mkdir()

    def training():
        shutil.copytree(TRAINED, first)
        served.model = loaded(first, torch.bfloat16)
        yield
        yield
        shutil.copytree(near, second)
        yield
        yield  # asked once before the sync
        if arrives:
            served.model = loaded(second, torch.bfloat16)

    steps = training()
    monkeypatch.setattr(time, "sleep", lambda seconds: next(steps, None))
    grace = "8" if arrives else "2"  # seconds, all of which pass; a busy machine asks once in two
    assert main([url, str(first.parent), "--watch", "2", "--grace", grace, *FEWEST]) == 1
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["matches", told]


def test_the_newest_export_is_one_that_has_weights(tmp_path):
    folders = [tmp_path / f"checkpoint-{number}" for number in (1, 2)]
    for folder in folders:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        assert newest_export(str(tmp_path)) is None
    for folder in folders:
        (folder / "model.safetensors").write_bytes(b"x")
    for pattern in (tmp_path, tmp_path / "checkpoint-*", tmp_path / "checkpoint-2"):
        assert newest_export(str(pattern)).path == str(tmp_path / "checkpoint-2")


def test_an_address_is_taken_with_and_without_its_version(url, probe):
    for address in (f"{url}/v1", f"{url}/", url.removeprefix("http://")):
        assert probe(TRAINED, "--prompts", "1", "--sampled", "1", address=address)[0] == 0


def test_a_finer_server_with_other_weights_does_not_pass_as_a_coarse_one(near, served, probe):
    served.model = loaded(near)
    code, _, made = probe(TRAINED)
    assert (code, made["verdict"], made["dtype"]) == (1, "undecided", "bfloat16")
    assert probe(TRAINED, "--dtype", "float32")[2]["verdict"] == "differs"


@pytest.mark.parametrize(
    "url", ["ftp://host", "http://[::", "http://", "http://host:port", "http://host:99999", "x\x1b]0;y"]
)
def test_what_is_no_address_is_reported_and_is_no_verdict(url, tmp_path):
    done = run_command("bapo_lightning.tools.commands.probe", url, tmp_path)
    assert done.returncode == 2 and "is not a server address; write http://HOST:PORT" in done.stderr


@pytest.fixture(scope="module", params=[0.05, 0.002])
def adapted(request, tmp_path_factory):
    """Folder of an adapter, large or mostly lost in bfloat16, and the model with it."""
    from peft import LoraConfig, get_peft_model

    folder, draws = tmp_path_factory.mktemp("adapter"), torch.Generator().manual_seed(0)
    model = get_peft_model(loaded(TRAINED), LoraConfig(r=4, target_modules="all-linear")).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight += request.param * torch.randn(weight.shape, generator=draws)
    model.save_pretrained(folder)
    return str(folder), model


def test_an_adapter_matches_a_server_that_merged_it(adapted, served, probe):
    folder, model = adapted
    served.model = copy.deepcopy(model).merge_and_unload()
    code, _, found = probe(folder, *FEW)
    assert (code, found["verdict"]) == (0, "matches")
    served.model = served.model.to(torch.bfloat16)
    assert probe(folder, "--dtype", "bfloat16", *FEW)[0] == 0


def test_an_adapter_matches_a_server_that_holds_it_apart(adapted, served, probe):
    folder, model = adapted
    served.model = copy.deepcopy(model).to(torch.bfloat16)
    code, _, found = probe(folder, "--dtype", "bfloat16")
    assert (code, found["verdict"]) == (0, "matches")


def test_an_adapter_that_was_never_delivered_is_found(adapted, probe):
    code, _, found = probe(adapted[0], *FEW)
    assert (code, found["verdict"]) == (1, "stale") and "without the adapter" in found["reason"]


@pytest.mark.parametrize(("config", "reason"), [
    ({"peft_type": "IA3"}, "does not describe a LoRA adapter"),
    ({"base_model_name_or_path": None}, "--base FOLDER"),
    ({"base_model_name_or_path": "no/such-model"}, "no/such-model"),
    ({"r": 8}, "does not fit its base model"),
    ({"target_modules": ["q_proj"]}, "does not fit its base model"),
    ({"r": "x"}, "does not fit its base model"),
])  # fmt: skip
def test_an_adapter_that_cannot_be_added_is_one_sentence(config, reason, adapted, tmp_path, url, capsys):
    shutil.copytree(adapted[0], tmp_path / "own")
    file = tmp_path / "own" / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **config}))
    assert main([url, str(tmp_path / "own"), *FEW]) == 2
    said = capsys.readouterr().err
    assert reason in said and "Traceback" not in said
