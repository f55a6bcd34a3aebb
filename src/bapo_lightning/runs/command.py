"""Shared parts of the commands: exit after errors, Hydra's composition, options of tables."""

from __future__ import annotations

import argparse
import atexit
import errno
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast, get_args

from bapo_lightning import __version__
from bapo_lightning.configuration.compose import explained, unreadable
from bapo_lightning.configuration.conf_dir import conf_dir, installed_folders
from bapo_lightning.configuration.group_names import expanded_overrides, refuse_no_names
from bapo_lightning.configuration.help import help_text
from bapo_lightning.configuration.hydra_versions import BASE, OWN_TARGETS
from bapo_lightning.configuration.origins import name_origins
from bapo_lightning.system.errors import BapoLightningError, ConfigError, FirstConfigError, exits_refused
from bapo_lightning.system.host import let_segments_grow
from bapo_lightning.system.printable import print_printable
from bapo_lightning.system.ranks.launch import leads
from bapo_lightning.system.stopping import stop

if TYPE_CHECKING:
    from omegaconf import DictConfig

# Progress bars of libraries show less than our phases, and fill piped output. The variables are read when the
# libraries load, also in processes that are started from here; users may set them to 0.
for _variable in ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS"):
    os.environ.setdefault(_variable, "1")
let_segments_grow()

INTERRUPTED = 130  # exit code, as in shells
# Errors whose message suffices for a file that the user named, or that a named folder holds.
OF_A_FILE = (
    errno.EACCES,
    errno.EEXIST,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.EROFS,
)
VERSION = f"bapo-lightning {__version__}"
# Matches texts that are not Hydra's own options.
_OPTION_WITH_VALUE = re.compile(r"-+(?!-|config-|package=|info=|experimental-rerun=)[\w.@/]+=")
_FULL_ERROR = "HYDRA_FULL_ERROR"  # variable: Hydra raises whole errors instead of printing their ends
_shows_full_error = _FULL_ERROR in os.environ  # set by the user


def command(
    code: int, *errors: type[Exception], usage: Callable[[], str] | None = None
) -> Callable[[Callable[..., int | None]], Callable[..., int]]:
    """Decorates a function that returns an exit code, or None for 0. Errors of this package, errors of the
    types `errors`, and errors of a file's name or rights become a line on stderr and the exit code `code`;
    Ctrl-C becomes a line and 130. `usage` makes the text for `--help`, unless the function handles it.
    Output is printable: it cannot control the terminal.
    """
    expected: tuple[type[Exception], ...] = (BapoLightningError, *errors)

    def decorate(main: Callable[..., int | None]) -> Callable[..., int]:
        @wraps(main)
        def guarded(*arguments: Any) -> int:
            print_printable()
            try:
                if usage is not None and {"--help", "-h"} & {*sys.argv[1:]}:
                    print(usage())
                    return 0
                if usage is not None and "--version" in sys.argv[1:]:
                    print(VERSION)
                    return 0
                return main(*arguments) or 0
            except KeyboardInterrupt:
                if leads():
                    print("interrupted", file=sys.stderr)
                return INTERRUPTED
            except expected as error:
                print(f"error: {error}", file=sys.stderr)
                return stop.code_after(code) if stop.is_heard else code
            except OSError as error:
                if error.errno not in OF_A_FILE or error.filename is None:
                    raise
                print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
                return code

        return guarded

    return decorate


def end_with(main: Callable[[], int | None]) -> NoReturn:
    """Runs a command as the program of this process, and ends the process right after it. All exit handlers
    run; only the teardown of modules is skipped, which takes two seconds once torch is loaded.
    """
    try:
        code: Any = main()
    except SystemExit as end:
        code = end.code
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as Python does at its end
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # such as a full disk, which Python's own end reports
        sys.exit(code)
    os._exit(code or 0)


def hydra_command(
    config_name: str,
    usage: Callable[[], str] = help_text,
    rewrite: Callable[[Sequence[str]], Sequence[str]] = list,
    code: int = 1,
) -> Callable[[Callable[[DictConfig], int | None]], Callable[[], int]]:
    """Decorates a command that gets the configuration composed by Hydra from a file of `conf/`. `usage` makes
    the text for `--help`, `rewrite` turns the command line into Hydra's overrides, `code` is the exit code
    after an error of this package before the function is called.
    """
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    def decorate(main: Callable[[DictConfig], int | None]) -> Callable[[], int]:
        @hydra.main(config_path=conf_dir(), config_name=config_name, **BASE, **OWN_TARGETS)
        @wraps(main)
        def composed(config: DictConfig) -> None:
            end_explanations()
            if failed := command(1)(with_origins)(config):
                sys.exit(failed)

        def with_origins(config: DictConfig) -> int | None:
            # Unresolved, as typed: an interpolation among them may have no value.
            typed = cast(list[str], OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False))
            with name_origins(typed, config_name), exits_refused():
                return main(config)

        @command(code, usage=usage)
        @wraps(main)
        def start() -> None:
            installed_folders()  # called here, since Hydra would wrap its error
            for text in filter(_OPTION_WITH_VALUE.match, sys.argv[1:]):
                raise ConfigError([unreadable(text)])
            if "--resolve" in sys.argv and not {"--cfg", "-c"} & {*sys.argv}:
                raise ConfigError(["--resolve prints nothing alone; write --cfg job --resolve"])
            sys.argv[1:] = overrides_first(rewrite(expanded_overrides(sys.argv[1:])))
            refuse_no_names(sys.argv[1:])
            with nullcontext() if _shows_full_error else _composition_explained(config_name):
                composed()

        return start

    return decorate


@contextmanager
def _composition_explained(config_name: str) -> Iterator[None]:
    # Hydra prints its errors itself unless this variable is set; it is unset after the composition.
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    os.environ[_FULL_ERROR] = "1"
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        overrides = [argument for argument in sys.argv[1:] if not _is_option(argument)]
        raise FirstConfigError([explained(error, overrides, config_name)]) from None
    finally:
        end_explanations()


def end_explanations() -> None:
    """Leaves errors to Hydra, here and in processes started from here, after the composition."""
    if not _shows_full_error:
        os.environ.pop(_FULL_ERROR, None)


def overrides_first(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with overrides before options: Hydra ignores overrides after `-m` if others come
    before it, as in `make train ARGS="-m algorithm=grpo,bapo"`.
    """
    return sorted(arguments, key=_is_option)


def _is_option(argument: str) -> bool:
    # Or an option's value.
    return argument.startswith("-") or not set("=~") & set(argument)


def parser_of(name: str, doc: str | None) -> argparse.ArgumentParser:
    """Returns a parser for the command `name`, described by the first line of its module's docstring."""
    description = (doc or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog=f"python -m bapo_lightning {name}", description=description)
    parser.add_argument("--version", action="version", version=VERSION)
    return parser


def number_type(annotation: Any, unit: str = "number") -> Callable[[str], Any]:
    """Returns the `type` of an option that is a number of this annotation."""

    def read(text: str) -> Any:
        from bapo_lightning.configuration.wording import accepted, value_problem

        try:
            value = get_args(annotation)[0](text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text} {accepted(annotation, unit)}") from None
        if problem := value_problem(annotation, unit, value):
            raise argparse.ArgumentTypeError(f"{text} {problem}")
        return value

    return read


def table_parser(
    name: str, doc: str | None, things: str, reference: tuple[str, str], **folders: Any
) -> argparse.ArgumentParser:
    """Returns a parser with the options of a table of `things`, a noun; `reference` are metavar and noun of
    the reference of differences, `folders` options of the positional argument.
    """
    parser = parser_of(name, doc)
    parser.add_argument("folders", nargs="+", **folders)
    where = f"where to write (default: where the {things} are)"
    parser.add_argument("--output", type=Path, metavar="DIR", help=where)
    what = f"{reference[1]} that others are compared with (default: the first)"
    parser.add_argument("--reference", metavar=reference[0], help=what)
    return parser
