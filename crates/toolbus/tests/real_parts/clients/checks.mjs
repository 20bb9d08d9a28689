// The TypeScript clients against a target: `checks.mjs CLIENT '{"url": …}' PROFILE…` or `'{"command": …, "args":
// […]}'`. CLIENT is `v1` (the SDK that supports only the legacy era), `v2` (its successor, legacy by default) or
// `v2-auto`. The same checks apply to a server itself and to a proxy in front of it. The first check that fails ends
// the program with an error; the last line counts the checks that passed.

import { existsSync, mkdtempSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";

const TIMEOUT = 30_000;
const parts = process.env.TOOLBUS_PARTS;
if (!parts) throw new Error("TOOLBUS_PARTS is not set");
const require = createRequire(join(parts, "node/"));

let passed = 0;
function check(name, holds, seen) {
  if (!holds) {
    console.log(`FAILED ${name}: ${JSON.stringify(seen)}`);
    process.exit(1);
  }
  passed += 1;
  console.log("ok", name);
}

async function until(holds) {
  const end = Date.now() + TIMEOUT;
  while (!(await holds())) {
    if (Date.now() > end) return false;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return true;
}

const seen = { notifications: [], asked: [] };
const answers = {
  "sampling/createMessage": (request) => {
    seen.asked.push("sampling");
    const content = { type: "text", text: `sampled ${request.params.maxTokens}` };
    return { role: "assistant", content, model: "none", stopReason: "endTurn" };
  },
  "elicitation/create": (request) => {
    seen.asked.push("elicitation");
    const properties = request.params.requestedSchema.properties;
    const known = ["name", "response", "user_name"].filter((name) => name in properties);
    return { action: "accept", content: Object.fromEntries(known.map((name) => [name, "Ada"])) };
  },
  "roots/list": () => {
    seen.asked.push("roots");
    return { roots: [{ uri: "file:///somewhere", name: "somewhere" }] };
  },
};
const capabilities = { sampling: {}, elicitation: {}, roots: {} };
const me = { name: "checks", version: "1" };

function legacyOnly(target) {
  const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
  const { StdioClientTransport } = require("@modelcontextprotocol/sdk/client/stdio.js");
  const { StreamableHTTPClientTransport } = require("@modelcontextprotocol/sdk/client/streamableHttp.js");
  const types = require("@modelcontextprotocol/sdk/types.js");
  const client = new Client(me, { capabilities });
  client.setRequestHandler(types.CreateMessageRequestSchema, answers["sampling/createMessage"]);
  client.setRequestHandler(types.ElicitRequestSchema, answers["elicitation/create"]);
  client.setRequestHandler(types.ListRootsRequestSchema, answers["roots/list"]);
  client.setNotificationHandler(types.ToolListChangedNotificationSchema, note);
  client.setNotificationHandler(types.ResourceUpdatedNotificationSchema, note);
  const transport = target.url ? new StreamableHTTPClientTransport(new URL(target.url)) : new StdioClientTransport(target);
  return { client, transport, callTool: (call, options) => client.callTool(call, undefined, options) };
}

function bothEras(target, options) {
  const { Client, StreamableHTTPClientTransport } = require("@modelcontextprotocol/client");
  const { StdioClientTransport } = require("@modelcontextprotocol/client/stdio");
  const client = new Client(me, { capabilities, ...options });
  for (const [method, answer] of Object.entries(answers)) client.setRequestHandler(method, answer);
  client.setNotificationHandler("notifications/tools/list_changed", note);
  client.setNotificationHandler("notifications/resources/updated", note);
  const transport = target.url ? new StreamableHTTPClientTransport(new URL(target.url)) : new StdioClientTransport(target);
  return { client, transport, callTool: (call, options) => client.callTool(call, options) };
}

function note(notification) {
  seen.notifications.push(notification.method);
}

const CLIENTS = {
  v1: legacyOnly,
  v2: (target) => bothEras(target, {}),
  "v2-auto": (target) => bothEras(target, { versionNegotiation: { mode: "auto" } }),
};

const text = (result) => result.content.filter((block) => block.type === "text").map((block) => block.text).join("\n");

// These clients drop a notification that arrives in the same read as the result of its call, also without toolbus. The
// Python client does not, so its checks require the last step too.
function inOrder(steps, expected) {
  return steps.length >= expected.length - 1 && steps.every((step, index) => step === expected[index]);
}

function usable({ client, transport, callTool }) {
  const defaults = { timeout: TIMEOUT };
  return {
    client,
    transport,
    isModern: () => (client.getNegotiatedProtocolVersion?.() ?? "") >= "2026-07-28",
    call: (name, args = {}, options = {}) => callTool({ name, arguments: args }, { ...defaults, ...options }),
  };
}

async function hears({ client, isModern }, name, method, filter, trigger) {
  seen.notifications.length = 0;
  const uris = filter.resourceSubscriptions ?? [];
  const stream = isModern() ? await client.listen(filter) : undefined;
  if (!stream) for (const uri of uris) await client.subscribeResource({ uri });
  await trigger();
  check(name, await until(() => seen.notifications.includes(method)), seen.notifications);
  if (stream) await stream.close();
  else for (const uri of uris) await client.unsubscribeResource({ uri });
}

async function both_eras(connection) {
  const { client, call, isModern } = connection;
  const names = (await client.listTools()).tools.map((tool) => tool.name);
  check("lists its tools", ["test_simple_text", "wait_until_cancelled"].every((name) => names.includes(name)), names);
  check("calls", text(await call("test_simple_text")).includes("simple text response"));
  const [image] = (await call("test_image_content")).content;
  check("image content", image.type === "image" && image.mimeType === "image/png", image);
  const exact = await call("exact", { number: 7 });
  check("structured content", exact.structuredContent.number === 7, exact);
  check("a tool's error is a result", (await call("test_error_handling")).isError === true);

  const steps = [];
  await call("test_tool_with_progress", {}, { onprogress: (progress) => steps.push(progress.progress) });
  check("progress in order, before the result", inOrder(steps, [0, 50, 100]), steps);

  const [read] = (await client.readResource({ uri: "test://template/7/data" })).contents;
  check("reads a resource", JSON.parse(read.text).id === "7", read);
  const error = await client.readResource({ uri: "test://no-such-thing" }).catch((error) => error);
  check("an unknown resource is an error", [-32602, -32002].includes(error.code), error);
  const prompt = await client.getPrompt({ name: "test_prompt_with_arguments", arguments: { arg1: "one", arg2: "two" } });
  check("gets a prompt", prompt.messages[0].content.text.includes("one"), prompt);
  const ref = { type: "ref/prompt", name: "test_prompt_with_arguments" };
  const completed = await client.complete({ ref, argument: { name: "arg1", value: "o" } });
  check("completes", completed.completion.values.length === 0, completed);

  const modern = isModern();
  const sampled = await (modern ? call("test_input_required_result_sampling") : call("test_sampling", { prompt: "what?" }));
  check("sampling goes round", text(sampled).includes("sampled 100"), sampled);
  const elicited = await (modern ? call("test_input_required_result_elicitation") : call("test_elicitation", { message: "who?" }));
  check("elicitation goes round", text(elicited).includes("Ada"), elicited);

  const uri = "test://watched-resource";
  await hears(connection, "a resource's update", "notifications/resources/updated", { resourceSubscriptions: [uri] }, () =>
    call("announce_resource", { uri }),
  );
  await hears(connection, "a changed list", "notifications/tools/list_changed", { toolsListChanged: true }, () =>
    call("announce_tools"),
  );
  await cancels(connection);
}

async function cancels({ call }) {
  const folder = mkdtempSync(join(tmpdir(), "checks-"));
  const [started, cancelled] = [join(folder, "started"), join(folder, "cancelled")];
  const abort = new AbortController();
  const ended = call("wait_until_cancelled", { started, cancelled }, { signal: abort.signal }).catch((error) => error);
  check("a call starts", await until(() => existsSync(started)));
  abort.abort("enough");
  check("a cancelled call ends", (await ended) instanceof Error || (await ended) === "enough", await ended);
  check("a cancelled call is cancelled at the server", await until(() => existsSync(cancelled)));
  check("and calls go on", text(await call("test_simple_text")).includes("simple text"));
}

async function everything({ client, call }) {
  const wanted = ["trigger-sampling-request", "trigger-elicitation-request", "get-roots-list"];
  // The server registers these once it knows the client's capabilities.
  const listed = await until(async () => {
    const names = (await client.listTools(undefined, { cacheMode: "refresh" })).tools.map((tool) => tool.name);
    return wanted.every((name) => names.includes(name));
  });
  check("tools that depend on the client's capabilities", listed);
  check("echo", text(await call("echo", { message: "hello" })) === "Echo: hello");
  const image = (await call("get-tiny-image")).content.find((block) => block.type === "image");
  check("image content", image?.mimeType === "image/png", image);
  const weather = await call("get-structured-content", { location: "Chicago" });
  check("structured content", "temperature" in weather.structuredContent, weather);
  const steps = [];
  const long = { duration: 0.5, steps: 5 };
  // The server asks for the roots at some time after its start. If it does so during this call, the SDK reports a
  // progress of its own, which has no total.
  const onprogress = ({ progress, total }) => total && steps.push(progress);
  await call("trigger-long-running-operation", long, { onprogress });
  check("progress in order, before the result", inOrder(steps, [1, 2, 3, 4, 5]), steps);
  const [read] = (await client.readResource({ uri: "demo://resource/dynamic/text/3" })).contents;
  check("reads a resource", read.text.includes("3"), read);
  const prompt = await client.getPrompt({ name: "args-prompt", arguments: { city: "Oslo" } });
  check("gets a prompt", prompt.messages[0].content.text.includes("Oslo"), prompt);
  const ref = { type: "ref/prompt", name: "completable-prompt" };
  const completed = await client.complete({ ref, argument: { name: "department", value: "E" } });
  check("completes", completed.completion.values.includes("Engineering"), completed);
  const sampled = await call("trigger-sampling-request", { prompt: "what?", maxTokens: 33 });
  check("sampling goes round", text(sampled).includes("sampled 33"), sampled);
  const elicited = await call("trigger-elicitation-request");
  check("elicitation goes round", text(elicited).includes("Name: Ada"), elicited);
  check("roots go round", text(await call("get-roots-list")).includes("file:///somewhere"));
}

async function files({ call }) {
  const allowed = text(await call("list_allowed_directories")).split("\n").at(-1);
  const path = join(allowed, "note.txt");
  await call("write_file", { path, content: "written through MCP ✓" });
  check("a file is written", readFileSync(path, "utf8") === "written through MCP ✓");
  check("a file is read", text(await call("read_text_file", { path })).includes("written through MCP ✓"));
  check("a folder that is not allowed is refused", (await call("read_text_file", { path: dirname(parts) })).isError);
}

async function memory({ call }) {
  const entity = { name: "Ada", entityType: "person", observations: ["wrote the first program"] };
  await call("create_entities", { entities: [entity] });
  const graph = (await call("read_graph")).structuredContent;
  check("stored entities are returned", graph.entities.some((seen) => seen.name === "Ada"), graph);
}

const [kind, target, ...profiles] = process.argv.slice(2);
const connection = usable(CLIENTS[kind](JSON.parse(target)));
await connection.client.connect(connection.transport);
console.log("speaks", connection.isModern() ? "modern" : "legacy");
for (const profile of profiles) await { both_eras, everything, files, memory }[profile](connection);
await connection.client.close();
console.log(`${passed} checks passed`);
