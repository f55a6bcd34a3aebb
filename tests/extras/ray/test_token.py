"""Nobody else reads the token of a cluster, by which its holder runs code on the nodes."""

import ray

from bapo_lightning.extras.ray import joining


def mode(path):
    return path.stat().st_mode & 0o777


def test_the_token_is_this_users_alone_before_ray_starts(tmp_path, monkeypatch):
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE", joining.JOINED):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    token, seen = tmp_path / ".ray" / "auth_token", []

    def init(**options):
        seen.append((mode(token), token.read_text()))

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    for _ in range(2):
        joining.join(None, 1, "address")
        token.chmod(0o644)  # as Ray makes it
    assert [found for found, _ in seen] == [0o600, 0o600]
    assert len({text for _, text in seen}) == 1 and len(seen[0][1]) == 64
    assert [path.name for path in token.parent.iterdir()] == ["auth_token"]


def test_no_token_is_made_where_ray_makes_none(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in [("RAY_AUTH_TOKEN", "own"), ("RAY_AUTH_MODE", "disabled")]:
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            joining.keep_token_private(is_created=True)
    joining.keep_token_private(is_created=False)
    assert not list(tmp_path.iterdir())
