"""What plugins bring to the server: observers of requests and loggers of statistics. Asked once, when the application is made."""

from __future__ import annotations

from dataclasses import dataclass

from llmx.config import EngineConfig
from llmx.hooks.loader import PluginLoader
from llmx.plugin_options import with_plugin_defaults
from llmx_server.stat_loggers import OwnLoggers, StatLoggers
from llmx_server.watching import Watchers

__all__ = ["ServerPlugins", "server_plugins"]


@dataclass(frozen=True, slots=True)
class ServerPlugins:
    """watchers is None where nobody watches."""

    loggers: StatLoggers
    watchers: Watchers | None


def server_plugins(config: EngineConfig) -> ServerPlugins:
    """Those of all allowed plugins. Raises what a plugin raises about its options."""
    manager = PluginLoader.discover(config.platform).activate(None, builtin=[OwnLoggers()])
    config = with_plugin_defaults(config, manager)
    loggers = [one for found in manager.hook.llmx_stat_loggers(config=config) for one in found]
    observers = [one for found in manager.hook.llmx_request_observers(config=config) for one in found]
    return ServerPlugins(StatLoggers(loggers), Watchers(observers) if observers else None)
