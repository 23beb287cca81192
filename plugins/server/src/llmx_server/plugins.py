"""What plugins bring to the server: routes, observers of requests, loggers of statistics. Asked once, when the application is made."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import BaseRoute

from llmx.config import EngineConfig
from llmx.hooks.loader import PluginLoader, owned_results
from llmx.plugin_options import with_plugin_defaults
from llmx.record import record
from llmx_server.plugin_routes import PluginRoutes
from llmx_server.stat_loggers import OwnLoggers, StatLoggers
from llmx_server.watching import Watchers

__all__ = ["ServerPlugins", "server_plugins"]


@record
class ServerPlugins:
    """watchers is None where nobody watches."""

    routes: PluginRoutes
    loggers: StatLoggers
    watchers: Watchers | None


def server_plugins(config: EngineConfig, core: Sequence[BaseRoute]) -> ServerPlugins:
    """Those of all allowed plugins. core: the routes that are there already. Raises PluginError, and what a plugin raises about its options."""
    manager = PluginLoader.discover(config.platform).activate(None, builtin=[OwnLoggers()])
    config = with_plugin_defaults(config, manager)
    loggers = [one for found in manager.hook.llmx_stat_loggers(config=config) for one in found]
    observers = [one for found in manager.hook.llmx_request_observers(config=config) for one in found]
    routes = PluginRoutes(owned_results(manager, "llmx_routes", config=config), core)
    return ServerPlugins(routes, StatLoggers(loggers), Watchers(observers) if observers else None)
