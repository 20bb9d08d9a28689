"""The Python SDK's own example server, which speaks both eras, with additional tools that expose cancellation and
notifications to tests.

Over stdio, or over HTTP with `--http PORT`.
"""

import sys
from pathlib import Path

import anyio
from mcp.server.mcpserver import Context
from mcp_everything_server.server import event_store, mcp


@mcp.tool()
async def wait_until_cancelled(started: str, cancelled: str) -> str:
    """Creates one file when it starts and another when it is cancelled, so that a test can observe both."""
    Path(started).touch()
    try:
        await anyio.sleep(60)
    except anyio.get_cancelled_exc_class():
        Path(cancelled).touch()
        raise
    return "not cancelled"


@mcp.tool()
async def announce_tools(ctx: Context) -> str:
    """Notifies that the list of tools changed, in the form of the client's era."""
    if ctx.request_context.protocol_version < "2026-07-28":
        await ctx.session.send_tool_list_changed()
    else:
        await ctx.notify_tools_changed()
    return "announced"


@mcp.tool()
async def announce_resource(uri: str, ctx: Context) -> str:
    """Notifies that a resource changed, in the form of the client's era."""
    if ctx.request_context.protocol_version < "2026-07-28":
        await ctx.session.send_resource_updated(uri)
    else:
        await ctx.notify_resource_updated(uri)
    return "announced"


@mcp.tool()
def exact(number: int) -> dict[str, int]:
    """Returns an integer of any size as structured content."""
    return {"number": number}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--http"]:
        mcp.run(transport="streamable-http", port=int(sys.argv[2]), event_store=event_store, retry_interval=100)
    else:
        mcp.run(transport="stdio")
