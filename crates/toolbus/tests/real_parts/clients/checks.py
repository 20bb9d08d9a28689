"""The Python SDK's client against a target: `checks.py '{"url": …}' MODE PROFILE…` or `'{"command": …, "args": […]}'`.

MODE is `legacy`, `auto` or a modern revision. The same checks apply to a server itself and to a proxy in front of it. The
first check that fails ends the program with an error; the last line counts the checks that passed.
"""

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

import anyio
import mcp_types as types
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError

warnings.simplefilter("ignore")
TIMEOUT = 30
HUGE = 2**60 + 1
passed = 0


def check(name: str, holds: object, seen: object = None) -> None:
    global passed
    if not holds:
        print(f"FAILED {name}: {seen!r}", flush=True)
        # Exits at once, because the errors of closing the connection would hide the failed check.
        os._exit(1)
    passed += 1
    print("ok", name, flush=True)


class Seen:
    """Records the server's notifications and its requests to the client."""

    def __init__(self) -> None:
        self.notifications: list[object] = []
        self.asked: list[str] = []

    async def message(self, message: object) -> None:
        self.notifications.append(message)

    async def sample(self, _context: object, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        self.asked.append("sampling")
        content = types.TextContent(type="text", text=f"sampled {params.max_tokens}")
        return types.CreateMessageResult(role="assistant", content=content, model="none", stop_reason="endTurn")

    async def elicit(self, _context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
        self.asked.append("elicitation")
        names = params.requested_schema["properties"]
        content = {name: "Ada" for name in ("name", "response", "user_name") if name in names}
        return types.ElicitResult(action="accept", content=content)

    async def roots(self, _context: object) -> types.ListRootsResult:
        self.asked.append("roots")
        return types.ListRootsResult(roots=[types.Root(uri="file:///somewhere", name="somewhere")])

    async def until(self, name: str, matches) -> None:
        with anyio.move_on_after(TIMEOUT):
            while not any(matches(seen) for seen in self.notifications):
                await anyio.sleep(0.02)
        check(name, any(matches(seen) for seen in self.notifications), self.notifications)


def text(result: types.CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if block.type == "text")


async def call(client: Client, name: str, **arguments: object) -> types.CallToolResult:
    return await client.call_tool(name, arguments)


async def hears(client: Client, seen: Seen, name: str, expected: type, trigger, **filter: object) -> None:
    """Waits for a notification: unsolicited in the legacy era, on a subscribed stream in the modern era."""
    if client.protocol_version < "2026-07-28":
        seen.notifications.clear()
        for uri in filter.get("resource_subscriptions", ()):
            await client.subscribe_resource(uri)
        await trigger()
        await seen.until(name, lambda message: type(message).__name__ == expected)
        for uri in filter.get("resource_subscriptions", ()):
            await client.unsubscribe_resource(uri)
        return
    async with client.listen(**filter) as stream:
        await trigger()
        event = await anext(aiter(stream))
        wanted = {"ToolListChangedNotification": "ToolsListChanged", "ResourceUpdatedNotification": "ResourceUpdated"}
        check(name, type(event).__name__ == wanted[expected], event)


async def both_eras(client: Client, seen: Seen) -> None:
    modern = client.protocol_version >= "2026-07-28"
    names = {tool.name for tool in (await client.list_tools()).tools}
    check("lists its tools", {"test_simple_text", "wait_until_cancelled"} <= names, names)
    check("calls", "simple text response" in text(await call(client, "test_simple_text")))
    image = (await call(client, "test_image_content")).content[0]
    check("image content", image.type == "image" and image.mime_type == "image/png", image)
    exact = await call(client, "exact", number=HUGE)
    check("structured content keeps large integers", exact.structured_content == {"number": HUGE}, exact)
    failed = await call(client, "test_error_handling")
    check("a tool's error is a result", failed.is_error, failed)

    steps: list[tuple[float, float | None]] = []

    async def progress(done: float, total: float | None, _message: str | None) -> None:
        steps.append((done, total))

    await client.call_tool("test_tool_with_progress", {}, progress_callback=progress)
    check("progress in order, before the result", steps == [(0, 100), (50, 100), (100, 100)], steps)

    read = (await client.read_resource("test://template/7/data")).contents[0]
    check("reads a resource", json.loads(read.text)["id"] == "7", read)
    binary = (await client.read_resource("test://static-binary")).contents[0]
    check("reads a binary resource", binary.blob, binary)
    try:
        await client.read_resource("test://no-such-thing")
        check("an unknown resource is an error", False)
    except MCPError as error:
        check("an unknown resource is an error", error.code in (-32602, -32002), error)
    prompt = await client.get_prompt("test_prompt_with_arguments", {"arg1": "one", "arg2": "two"})
    check("gets a prompt", "one" in prompt.messages[0].content.text, prompt)
    reference = types.PromptReference(type="ref/prompt", name="test_prompt_with_arguments")
    completed = await client.complete(reference, {"name": "arg1", "value": "o"})
    check("completes", completed.completion.values == [], completed)

    seen.asked.clear()
    if modern:
        sampled = await call(client, "test_input_required_result_sampling")
        elicited = await call(client, "test_input_required_result_elicitation")
        await call(client, "test_input_required_result_list_roots")
        await call(client, "test_input_required_result_multi_round")
        check("the server sends all its requests", {"sampling", "elicitation", "roots"} <= set(seen.asked), seen.asked)
    else:
        sampled = await call(client, "test_sampling", prompt="what?")
        elicited = await call(client, "test_elicitation", message="who?")
        check("the server sends all its requests", seen.asked == ["sampling", "elicitation"], seen.asked)
    check("sampling goes round", "sampled 100" in text(sampled), sampled)
    check("elicitation goes round", "Ada" in text(elicited), elicited)

    uri = "test://watched-resource"
    updated = "ResourceUpdatedNotification"
    await hears(client, seen, "a resource's update", updated, lambda: call(client, "announce_resource", uri=uri), resource_subscriptions=[uri])
    changed = "ToolListChangedNotification"
    await hears(client, seen, "a changed list", changed, lambda: call(client, "announce_tools"), tools_list_changed=True)
    await cancels(client)


async def cancels(client: Client) -> None:
    with tempfile.TemporaryDirectory() as folder:
        started, cancelled = Path(folder, "started"), Path(folder, "cancelled")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: call(client, "wait_until_cancelled", started=str(started), cancelled=str(cancelled)))
            await appears(started)
            tasks.cancel_scope.cancel()
        check("a cancelled call is cancelled at the server", await appears(cancelled))
    check("and calls go on", "simple text" in text(await call(client, "test_simple_text")))


async def appears(path: Path) -> bool:
    with anyio.move_on_after(TIMEOUT):
        while not path.exists():
            await anyio.sleep(0.02)
    return path.exists()


async def everything(client: Client, seen: Seen) -> None:
    wanted = {"trigger-sampling-request", "trigger-elicitation-request", "get-roots-list"}
    names: set[str] = set()
    with anyio.move_on_after(TIMEOUT):
        # The server registers these once it knows the client's capabilities.
        while not wanted <= names:
            names = {tool.name for tool in (await client.list_tools(cache_mode="refresh")).tools}
    check("tools that depend on the client's capabilities", wanted <= names, names)
    check("echo", text(await call(client, "echo", message="hello")) == "Echo: hello")
    image = [block for block in (await call(client, "get-tiny-image")).content if block.type == "image"]
    check("image content", image and image[0].mime_type == "image/png", image)
    weather = (await call(client, "get-structured-content", location="Chicago")).structured_content
    check("structured content", weather and "temperature" in weather, weather)
    steps: list[float] = []

    async def progress(done: float, _total: float | None, _message: str | None) -> None:
        steps.append(done)

    await client.call_tool("trigger-long-running-operation", {"duration": 0.5, "steps": 5}, progress_callback=progress)
    check("progress in order, before the result", steps == [1, 2, 3, 4, 5], steps)
    read = (await client.read_resource("demo://resource/dynamic/text/3")).contents[0]
    check("reads a resource", "3" in read.text, read)
    prompt = await client.get_prompt("args-prompt", {"city": "Oslo"})
    check("gets a prompt", "Oslo" in prompt.messages[0].content.text, prompt)
    reference = types.PromptReference(type="ref/prompt", name="completable-prompt")
    completed = await client.complete(reference, {"name": "department", "value": "E"})
    check("completes", "Engineering" in completed.completion.values, completed)
    sampled = await call(client, "trigger-sampling-request", prompt="what?", maxTokens=33)
    check("sampling goes round", "sampled 33" in text(sampled), sampled)
    elicited = await call(client, "trigger-elicitation-request")
    check("elicitation goes round", "Name: Ada" in text(elicited), elicited)
    roots = await call(client, "get-roots-list")
    check("roots go round", "file:///somewhere" in text(roots), roots)


async def files(client: Client, _seen: Seen) -> None:
    allowed = text(await call(client, "list_allowed_directories")).splitlines()[-1]
    path = str(Path(allowed, "note.txt"))
    await call(client, "write_file", path=path, content="written through MCP ✓")
    check("a file is written", Path(path).read_text() == "written through MCP ✓")
    check("a file is read", "written through MCP ✓" in text(await call(client, "read_text_file", path=path)))
    outside = await call(client, "read_text_file", path="/etc/hostname")
    check("a folder that is not allowed is refused", outside.is_error, outside)


async def memory(client: Client, _seen: Seen) -> None:
    entity = {"name": "Ada", "entityType": "person", "observations": ["wrote the first program"]}
    await call(client, "create_entities", entities=[entity])
    graph = (await call(client, "read_graph")).structured_content
    check("stored entities are returned", entity["name"] in [seen["name"] for seen in graph["entities"]], graph)


PROFILES = {"both_eras": both_eras, "everything": everything, "files": files, "memory": memory}


async def main() -> None:
    target, mode, *profiles = json.loads(sys.argv[1]), *sys.argv[2:]
    seen = Seen()
    server = target["url"] if "url" in target else StdioServerParameters(**target)
    client = Client(
        server,
        mode=mode,
        read_timeout_seconds=TIMEOUT,
        sampling_callback=seen.sample,
        elicitation_callback=seen.elicit,
        list_roots_callback=seen.roots,
        message_handler=seen.message,
    )
    with anyio.fail_after(120):
        async with client:
            print("speaks", client.protocol_version)
            for profile in profiles:
                await PROFILES[profile](client, seen)
    print(f"{passed} checks passed")


anyio.run(main)
