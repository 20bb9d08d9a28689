"""An MCP server for the corpus: it answers a request with the stored text of its case, byte for byte, after the stored
notifications, and writes the raw params of the request to stderr. It speaks both eras, or the one named by the second
argument. The case is the last path segment of the tool's name, the prompt's name or the resource's URI."""

import json
import re
import sys

CORPUS = json.load(open(sys.argv[1], encoding="utf-8"))
ERA = sys.argv[2] if len(sys.argv) > 2 else "both"
CASES = {case["name"]: case for case in CORPUS["cases"]}
CAPABILITIES = {"tools": {"listChanged": True}, "resources": {"subscribe": True}, "prompts": {}, "logging": {},
                "completions": {}, "experimental": {"x.corpus": {"n": 1}}}
INFO = {"name": "corpus", "version": "1.0", "title": "Corpus"}
LISTS = {"tools/list": "tools", "prompts/list": "prompts", "resources/list": "resources",
         "resources/templates/list": "resourceTemplates"}


def say(text):
    sys.stdout.buffer.write(text.encode() + b"\n")
    sys.stdout.buffer.flush()


def answer(line_id, text):
    say('{"jsonrpc":"2.0","id":%s,%s}' % (line_id, text))


def is_foreign(modern):
    return ERA == ("legacy" if modern else "modern")


def raw_member(text, name):
    """The raw text of one member of the outermost object, so that numbers are not changed."""
    decoder, at, depth_one = json.JSONDecoder(), 1, {}
    while True:
        match = re.compile(r'\s*"((?:[^"\\]|\\.)*)"\s*:\s*').match(text, at)
        if not match:
            return depth_one.get(name)
        _, end = decoder.raw_decode(text, match.end())
        depth_one[match.group(1)] = text[match.end():end]
        at = end + 1


def main():
    for line in sys.stdin.buffer:
        line = line.decode().strip()
        message = json.loads(line)
        method, params = message.get("method"), message.get("params") or {}
        if "id" not in message or method is None:
            continue
        line_id = raw_member(line, "id")
        modern = "io.modelcontextprotocol/protocolVersion" in params.get("_meta", {})
        if is_foreign(modern):
            answer(line_id, '"error":{"code":-32601,"message":"Method not found"}')
        elif method == "initialize":
            result = {"protocolVersion": params["protocolVersion"], "capabilities": CAPABILITIES, "serverInfo": INFO}
            answer(line_id, '"result":' + json.dumps(result))
        elif method == "server/discover":
            result = {"supportedVersions": ["2026-07-28"], "capabilities": CAPABILITIES, "resultType": "complete",
                      "ttlMs": 0, "cacheScope": "private", "_meta": {"io.modelcontextprotocol/serverInfo": INFO}}
            answer(line_id, '"result":' + json.dumps(result))
        elif method in LISTS:
            kind = LISTS[method]
            extra = ',"resultType":"complete","ttlMs":5,"cacheScope":"public"' if modern else ""
            answer(line_id, '"result":{"%s":[%s]%s,"x-list":1.50}' % (kind, ",".join(CORPUS["lists"].get(kind, [])), extra))
        else:
            name = params.get("name") or params.get("uri") or params.get("ref", {}).get("name", "")
            case = CASES.get(name.rsplit("/", 1)[-1])
            if case is None:
                answer(line_id, '"error":{"code":-32601,"message":"Method not found"}')
                continue
            sys.stderr.write("received %s %s\n" % (case["name"], raw_member(line, "params")))
            sys.stderr.flush()
            token = raw_member(raw_member(raw_member(line, "params"), "_meta") or "{}", "progressToken")
            for note in case.get("notifications", []):
                say(note.replace("$TOKEN", token or "0"))
            answer(line_id, case["modern" if modern and "modern" in case else "answer"])


main()
