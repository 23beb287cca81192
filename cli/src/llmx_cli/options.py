"""The engine's options as command-line options: made from llmx.options, so that each is declared once for all commands."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmx.foreign_options import FOREIGN, ForeignOption
from llmx.options import OPTIONS, Option, PluginOption
from llmx.record import record

if TYPE_CHECKING:
    from llmx.config import Change, EngineConfig
    from llmx.engine.shared_threads import SharedThreads

__all__ = ["Settings", "with_settings"]

_PANELS = {"model": "Model", "cache": "KV cache", "scheduler": "Scheduler", "platform": "Platform and kernels", "server": "Server"}
_METAVARS = {"str": "TEXT", "int": "N", "float": "NUMBER", "bytes": "SIZE", "tokens": "TOKENS", "list": "TEXT", "json": "JSON"}


@record
class Settings:
    """What the command line says about the engine: options by name (given ones only) and the configuration file."""

    options: dict[str, Any]
    config_file: str | None = None
    models: tuple[str, ...] = ()  # named on the command line, where several may be

    def resolve(self) -> tuple[EngineConfig, list[Change]]:
        """The configuration from all sources. Raises ConfigError."""
        from llmx.resolve import resolve

        return resolve(self.options, config_file=self.config_file)

    def resolve_models(self) -> list[tuple[EngineConfig, list[Change]]]:
        """The configuration of each model, one or several. Raises ConfigError."""
        from llmx.resolve import resolve_models

        return resolve_models(self.options, self.models, config_file=self.config_file)

    def shared_threads(self) -> SharedThreads:
        """What all models share their threads by: as many as are set for none of them alone. Raises ConfigError."""
        from llmx.engine.shared_threads import SharedThreads
        from llmx.resolve import resolve

        return SharedThreads(resolve(self.options, config_file=self.config_file, own={})[0].platform.threads)

    def resolve_further(self, own: dict[str, Any]) -> tuple[EngineConfig, list[Change]]:
        """The configuration of one more model, from its own options over these. Raises ConfigError."""
        from llmx.resolve import resolve_further

        return resolve_further(self.options, own, config_file=self.config_file)

    def plugin_options(self) -> tuple[PluginOption, ...]:
        """The options that installed plugins add. Raises PluginError."""
        from llmx.resolve import plugin_options

        return plugin_options(self.options, config_file=self.config_file)

    def merged(self) -> dict[str, Any]:
        """Options by name from command line, file and environment, converted and checked; what llmx.LLM takes."""
        return self.named(*self.resolve())

    def named(self, config: EngineConfig, changes: list[Change]) -> dict[str, Any]:
        """What was set in a resolved configuration, by option name."""
        changed = {change.path for change in changes}
        found = {}
        for option in OPTIONS:
            if option.path in changed:
                section, _, name = option.path.partition(".")
                found[option.name] = getattr(getattr(config, section), name)
        for plugin, values in config.plugins.items():
            found.update({f"{plugin.replace('-', '_')}_{name}": value for name, value in values.items()})
        return found


def with_settings(
    *, server: bool = False, model: bool = True, several: bool = False, also: tuple[str, ...] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the command's parameter `settings` becomes all engine options (and the server's, or those in `also`), MODEL and --config.

    several: MODEL may be given more than once; then they are in settings.models.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        foreign = [option for option in FOREIGN if server or not option.server]
        own = inspect.signature(command, eval_str=True)

        def taking(plugins: Sequence[PluginOption]) -> Callable[..., Any]:
            options: list[Option] = [*(option for option in OPTIONS if server or not option.server or option.name in also), *plugins]

            @functools.wraps(command)
            def with_options(**given: Any) -> Any:
                return command(settings=_settings([*(one.name for one in options), *(one.name for one in foreign)], given), **given)

            parameters = [_model_argument(several)] if model else []
            parameters += [parameter for parameter in own.parameters.values() if parameter.name != "settings"]
            parameters += [_parameter(option, server) for option in options]
            parameters += [_foreign_parameter(option) for option in foreign]
            parameters += _common()
            keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
            with_options.__signature__ = own.replace(parameters=keyword)  # type: ignore[attr-defined]
            with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in keyword}
            with_options.widened = taking  # type: ignore[attr-defined]  # plugin_flags asks for the command with options of plugins
            return with_options

        return taking(())

    return decorate


def _settings(names: list[str], given: dict[str, Any]) -> Settings:
    """What a command line says of the engine, taken out of its parameters `given`. names: of the options among them."""
    options = {name: given.pop(name) for name in names}
    named = given.pop("model_argument", None) or []
    models = (named,) if isinstance(named, str) else tuple(named)
    options["model"] = _one_model(models, options["model"])
    config_file = given.pop("config_file")
    given.pop("verbose")  # read by main, before anything can fail
    return Settings({name: value for name, value in options.items() if value not in (None, [])}, config_file, models if len(models) > 1 else ())


def _parameter(option: Option, server: bool) -> inspect.Parameter:
    section = option.path.partition(".")[0]
    panel = f"Plugin {option.plugin}" if isinstance(option, PluginOption) else _PANELS.get(section, section.capitalize())
    flags = [option.flag, *("--" + alias.replace("_", "-") for alias in option.aliases)]
    if server and option.short:
        flags.append(option.short)
    if option.kind == "bool":
        return _keyword(option.name, bool | None, typer.Option(*_switches(flags), help=option.help, rich_help_panel=panel))
    metavar = "|".join(option.choices) or _METAVARS[option.kind]
    kind: Any = list[str] | None if option.kind == "list" else str | None
    # Values stay text here: resolve converts and checks them, for the file and the environment by the same rules.
    return _keyword(option.name, kind, typer.Option(*flags, help=option.help, metavar=metavar, rich_help_panel=panel))


def _foreign_parameter(option: ForeignOption) -> inspect.Parameter:
    """Options of other engines are taken without being shown; resolve says what to do about each value."""
    flags = [option.flag, *filter(None, [option.short])]
    if option.kind == "bool":
        return _keyword(option.name, bool | None, typer.Option(*_switches(flags), hidden=True))
    return _keyword(option.name, str | None, typer.Option(*flags, hidden=True))


def _switches(flags: list[str]) -> list[str]:
    return [f"{flag}/--no-{flag.removeprefix('--')}" if flag.startswith("--") else flag for flag in flags]


def _model_argument(several: bool) -> inspect.Parameter:
    text = "Embedded name, .gguf file, directory with config.json and safetensors, or hub model (org/name, org/name:QUANT). Default: smollm2-135m-instruct."
    if several:
        text += " Several are served together."
        return _keyword("model_argument", list[str] | None, typer.Argument(metavar="[MODEL]...", help=text, show_default=False))
    return _keyword("model_argument", str | None, typer.Argument(metavar="MODEL", help=text, show_default=False))


def _common() -> list[inspect.Parameter]:
    file = typer.Option("--config", metavar="FILE", help="YAML or TOML file with options by name", rich_help_panel="General")
    verbose = typer.Option("--verbose", help="Show tracebacks", rich_help_panel="General")
    return [_keyword("config_file", str | None, file), _keyword("verbose", bool, verbose, default=False)]


def _keyword(name: str, kind: Any, info: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def _one_model(arguments: tuple[str, ...], option: str | None) -> str | None:
    """The model when one is named; None when none or several are."""
    if arguments and option is not None and arguments != (option,):
        raise typer.BadParameter(f"the model is given twice, as {' '.join(arguments)!r} and with --model {option!r}: leave one out")
    return option if not arguments else arguments[0] if len(arguments) == 1 else None
