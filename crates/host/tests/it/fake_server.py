"""A small MCP server for tests. The first argument is its era: legacy, modern or both.

Listed tools: echo (its arguments and _meta), add, whoami (the client's initialize params or _meta), slow (reports
progress until it is cancelled), ask (elicits a name), die, fail, big, change (adds a tool), log, update (notifies of a
changed resource), task (returns a working task with the given id), rewrite (changes the description of a tool), effect
(appends a line to a file, reports progress, waits for another file, exits if `die` is set).
With FAKE_STARTS in its environment it appends a line to that file when it starts; FAKE_ELICITING_TOOL is a tool that it
lists only for a legacy client with elicitation.
The third argument may list idem_effect, which is effect with an idempotentHint. The method vendor/effect runs effect, and so does the notification notifications/vendor/effect.
"""
import json, os, sys, threading, time

ERA = sys.argv[1]
NAME = sys.argv[2] if len(sys.argv) > 2 else "fake"
TOOLS = ["echo", "add", "whoami", "slow", "ask", "die", "fail", "big", "change", "log", "update",
         "task", "rewrite", "effect"]
TOOLS += sys.argv[3:]
P = "io.modelcontextprotocol/"
if "FAKE_STARTS" in os.environ:
    with open(os.environ["FAKE_STARTS"], "a") as starts:
        starts.write("%d\n" % os.getpid())
DESCRIPTIONS = {}
lock = threading.Lock()
cancelled, answers, listens, subscribed, hello = set(), {}, {}, set(), {}
answered = threading.Condition()
next_id = [1000]


def send(message):
    message["jsonrpc"] = "2.0"
    with lock:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def notify(method, params=None):
    send({"method": method, "params": params} if params is not None else {"method": method})


def notify_change(method, params=None):
    if modern():
        for listen, wanted in list(listens.items()):
            name = method.split("/")[1] + "ListChanged"
            uri = (params or {}).get("uri")
            if wanted.get(name) or (uri and uri in wanted.get("resourceSubscriptions", [])):
                notify(method, dict(params or {}, _meta={P + "subscriptionId": listen}))
    elif "uri" not in (params or {}) or params["uri"] in subscribed:
        notify(method, params)


def modern():
    return ERA == "modern" or hello.get("era") == "modern"


def ask(method, params):
    with answered:
        next_id[0] += 1
        id = next_id[0]
    send({"id": id, "method": method, "params": params})
    with answered:
        while id not in answers:
            answered.wait(20)
        return answers.pop(id)


def text(value):
    return {"content": [{"type": "text", "text": value if isinstance(value, str) else json.dumps(value)}]}


def call(id, params):
    name, args, meta = params.get("name"), params.get("arguments") or {}, params.get("_meta") or {}
    if name == "echo":
        return dict(text(args), structuredContent=args, _meta={"got": meta})
    if name == "add":
        return text(str(args["a"] + args["b"]))
    if name == "whoami":
        who = {"pid": os.getpid(), "hello": hello.get("initialize")}
        if modern():
            who["hello"] = {k[len(P):]: v for k, v in meta.items() if k.startswith(P)}
        return text(who)
    if name == "slow":
        for n in range(args.get("steps", 1000)):
            if id in cancelled:
                return None
            if "progressToken" in meta:
                notify("notifications/progress", {"progressToken": meta["progressToken"], "progress": n, "total": 1000})
            time.sleep(args.get("pause", 0.02))
        return text("done")
    if name == "ask":
        question = {"message": args.get("question", "Name?"), "requestedSchema": {"type": "object", "properties": {}}}
        if not modern():
            answer = ask("elicitation/create", question)
        elif "inputResponses" in params:
            answer = {"result": params["inputResponses"]["who"], "state": params.get("requestState")}
        else:
            request = {"method": "elicitation/create", "params": question}
            return {"resultType": "input_required", "requestState": "st=", "inputRequests": {"who": request}}
        return text(answer)
    if name == "die":
        sys.stderr.write("dying as asked\n")
        sys.stderr.flush()
        os._exit(3)
    if name == "fail":
        return dict(text("failed"), isError=True)
    if name == "big":
        return text("x" * args["bytes"])
    if name == "change":
        TOOLS.append(args["name"])
        notify_change("notifications/tools/list_changed")
        return text("changed")
    if name == "log":
        for level in ["debug", "info", "error"]:
            if not modern() or P + "logLevel" in meta:
                notify("notifications/message", {"level": level, "data": level})
        return text("logged")
    if name == "update":
        notify_change("notifications/resources/updated", {"uri": args["uri"]})
        return text("updated")
    if name == "rewrite":
        DESCRIPTIONS[args["name"]] = args["description"]
        notify_change("notifications/tools/list_changed")
        return text("rewritten")
    if name in ("effect", "idem_effect"):
        with open(args["file"], "a") as file:
            file.write(args.get("mark", "x") + "\n")
        progress = 0
        while "until" in args and not os.path.exists(args["until"]):
            if id in cancelled:
                return None
            if "progressToken" in meta:
                progress += 1
                notify("notifications/progress", {"progressToken": meta["progressToken"], "progress": progress})
            time.sleep(0.01)
        if args.get("die") and not os.path.exists(args.get("spare", "")):
            os._exit(3)
        return text("effected")
    if name == "task":
        return {"task": {"taskId": args["id"], "status": "working"}}
    raise KeyError(name)


def respond(id, method, params):
    capabilities = {"tools": {"listChanged": True}, "resources": {"subscribe": True, "listChanged": True},
                    "prompts": {}, "logging": {}, "completions": {}}
    if method == "initialize":
        if ERA == "modern":
            return {"error": {"code": -32022, "message": "modern only", "data": {"supported": ["2026-07-28"]}}}
        hello.update(era="legacy", initialize=params)
        if "elicitation" in params.get("capabilities", {}):
            TOOLS.extend(os.environ.get("FAKE_ELICITING_TOOL", "").split())
        return {"result": {"protocolVersion": params["protocolVersion"], "capabilities": capabilities,
                           "serverInfo": {"name": NAME, "version": "1"}, "instructions": "Be kind."}}
    is_modern = P + "protocolVersion" in (params.get("_meta") or {})
    if is_modern and ERA == "legacy":
        return {"error": {"code": -32601, "message": "Method not found"}}
    if is_modern:
        hello["era"] = "modern"
    complete = {"resultType": "complete"} if is_modern else {}
    cache = dict(complete, ttlMs=5, cacheScope="public") if is_modern else {}
    if method == "server/discover" and is_modern:
        return {"result": dict(cache, supportedVersions=["2026-07-28"], capabilities=capabilities,
                               _meta={P + "serverInfo": {"name": NAME, "version": "1"}})}
    if method == "subscriptions/listen" and is_modern:
        listens[id] = params["notifications"]
        notify("notifications/subscriptions/acknowledged",
             {"_meta": {P + "subscriptionId": id}, "notifications": params["notifications"]})
        return None
    if method in ("ping", "logging/setLevel") and not is_modern:
        hello["level"] = params.get("level")
        return {"result": {}}
    if method == "tools/list":
        start = int(params.get("cursor", 0))
        page = [{"name": n, "description": DESCRIPTIONS.get(n, "tool " + n), "inputSchema": {"type": "object"}} for n in TOOLS[start:start + 6]]
        for tool in page:
            if tool["name"].startswith("idem_"):
                tool["annotations"] = {"idempotentHint": True}
        more = {"nextCursor": str(start + 6)} if start + 6 < len(TOOLS) else {}
        return {"result": dict(cache, tools=page, **more)}
    if method == "resources/list":
        return {"result": dict(cache, resources=[{"uri": "test://" + NAME, "name": "r"}])}
    if method == "prompts/list":
        return {"result": dict(cache, prompts=[{"name": "greet"}])}
    if method == "prompts/get":
        return {"result": dict(complete, messages=[], description=params["name"])}
    if method == "resources/read":
        if params["uri"] != "test://" + NAME:
            return {"error": {"code": -32602 if is_modern else -32002, "message": "no", "data": {"uri": params["uri"]}}}
        return {"result": dict(cache, contents=[{"uri": params["uri"], "text": "t"}])}
    if method in ("resources/subscribe", "resources/unsubscribe") and not is_modern:
        (subscribed.add if method.endswith("/subscribe") else subscribed.discard)(params["uri"])
        return {"result": {}}
    if method == "vendor/effect":
        return {"result": call(id, {"name": "effect", "arguments": params})}
    if method in ("tasks/get", "tasks/cancel"):
        return {"result": dict(complete, taskId=params["taskId"], status="working")}
    if method == "tools/call":
        try:
            result = call(id, params)
        except KeyError as error:
            return {"error": {"code": -32602, "message": "Unknown tool: " + str(params.get("name")), "data": 1.0}}
        return None if result is None else {"result": result if "resultType" in result else dict(complete, **result)}
    return {"error": {"code": -32601, "message": "Method not found: " + method}}


def serve(id, method, params):
    answer = respond(id, method, params)
    if answer is not None:
        send(dict(answer, id=id))


for line in sys.stdin:
    message = json.loads(line)
    params = message.get("params") or {}
    if "method" not in message:
        with answered:
            answers[message["id"]] = {k: message[k] for k in ("result", "error") if k in message}
            answered.notify_all()
    elif message["method"] == "notifications/cancelled":
        cancelled.add(params["requestId"])
        listens.pop(params["requestId"], None)
    elif message["method"] == "notifications/vendor/effect":
        call(None, {"name": "effect", "arguments": params})
    elif "id" in message:
        threading.Thread(target=serve, args=(message["id"], message["method"], params), daemon=True).start()
