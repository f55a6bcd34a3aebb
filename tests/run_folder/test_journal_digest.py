"""Digests of journals that grow."""

from hashlib import sha256

from bapo_lightning.run_folder.journal import Journal, JournalDigest


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
