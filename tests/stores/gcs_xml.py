"""GCS's XML API in front of an emulator that has only the JSON API.

obstore puts, lists and deletes through the XML API, Spark's connector uses the JSON API. fake-gcs-server takes an upload by the
XML API only with a signed URL, without its conditions, and lists without ``start-after`` and without pages. Those requests are
translated here; everything else goes to the emulator as it is. Run as a program: port, URL of the emulator.
"""

from __future__ import annotations

import secrets
import sys
from typing import Any
from urllib.parse import quote, unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "content-length"}
CONDITION = "x-goog-if-generation-match"
PAGE = 1_000


class XmlApi:
    """The requests of one client API, in terms of the other."""

    def __init__(self, emulator: str) -> None:
        limits = httpx.Limits(max_connections=None)
        self._emulator = httpx.AsyncClient(base_url=emulator, timeout=60, limits=limits, trust_env=False)
        self._uploads: dict[str, dict[int, bytes]] = {}

    async def answer(self, request: Request) -> Response:
        path = request.scope["raw_path"].decode().split("?")[0]
        bucket, _, key = path.lstrip("/").partition("/")
        if bucket in ("storage", "upload", "download", "batch", "resumable", "_internal"):
            return await self._pass(request, path)
        query, name = request.query_params, unquote(key)
        if not name:
            return await self._list(bucket, query)
        if request.method == "PUT" and "uploadId" in query:
            self._uploads[query["uploadId"]][int(query["partNumber"])] = await request.body()
            return Response(headers={"ETag": f'"{query["partNumber"]}"'})
        if request.method == "PUT":
            return await self._put(bucket, name, await request.body(), request.headers.get(CONDITION))
        if request.method == "POST" and "uploads" in query:
            upload = secrets.token_hex(8)
            self._uploads[upload] = {}
            return _xml(f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>")
        if request.method == "POST" and "uploadId" in query:
            return await self._complete(request, bucket, name)
        if request.method == "DELETE" and "uploadId" in query:
            self._uploads.pop(query["uploadId"], None)
            return Response(status_code=204)
        if request.method == "DELETE":
            deleted = await self._emulator.delete(f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}")
            return Response(status_code=204) if deleted.is_success else _error(deleted.status_code, "NoSuchKey")
        return await self._pass(request, f"/download/storage/v1/b/{bucket}/o/{quote(name, safe='')}")

    async def _put(self, bucket: str, name: str, content: bytes, condition: str | None) -> Response:
        parameters = {"uploadType": "media", "name": name}
        if condition is not None:
            parameters["ifGenerationMatch"] = condition
        headers = {"Content-Type": "application/octet-stream"}
        put = await self._emulator.post(f"/upload/storage/v1/b/{bucket}/o", params=parameters, content=content, headers=headers)
        if put.status_code == 412:
            return _error(412, "PreconditionFailed")
        if not put.is_success:
            return _error(put.status_code, "NoSuchBucket" if put.status_code == 404 else "InternalError")
        stored = put.json()
        return Response(headers={"ETag": f'"{stored["etag"]}"', "x-goog-generation": stored["generation"]})

    async def _complete(self, request: Request, bucket: str, name: str) -> Response:
        parts = self._uploads.pop(request.query_params["uploadId"])
        wanted = [
            int(part.text or 0) for part in ElementTree.fromstring(await request.body()).iter() if part.tag.endswith("PartNumber")
        ]
        put = await self._put(bucket, name, b"".join(parts[number] for number in wanted), request.headers.get(CONDITION))
        if put.status_code != 200:
            return put
        etag = escape(put.headers["ETag"])
        return _xml(
            f"<CompleteMultipartUploadResult><Key>{escape(name)}</Key><ETag>{etag}</ETag></CompleteMultipartUploadResult>"
        )

    async def _list(self, bucket: str, query: Any) -> Response:
        after = query.get("continuation-token") or query.get("start-after") or ""
        parameters = {"maxResults": query.get("max-keys", str(PAGE)), "startOffset": f"{after}\0" if after else ""}
        parameters |= {name: query[name] for name in ("prefix", "delimiter") if name in query}
        listed = await self._emulator.get(f"/storage/v1/b/{bucket}/o", params=parameters)
        if not listed.is_success:
            return _error(listed.status_code, "NoSuchBucket")
        page = listed.json()
        items, prefixes = page.get("items", []), page.get("prefixes", [])
        lines = [
            f"<Contents><Key>{escape(item['name'])}</Key><LastModified>{item['updated']}</LastModified>"
            f"<ETag>&quot;{item['etag']}&quot;</ETag><Size>{item['size']}</Size></Contents>"
            for item in items
        ]
        lines += [f"<CommonPrefixes><Prefix>{escape(prefix)}</Prefix></CommonPrefixes>" for prefix in prefixes]
        truncated = "nextPageToken" in page
        if truncated:
            last = max([item["name"] for item in items] + prefixes)
            lines.append(f"<NextContinuationToken>{escape(last)}</NextContinuationToken>")
        return _xml(f"<ListBucketResult><IsTruncated>{str(truncated).lower()}</IsTruncated>{''.join(lines)}</ListBucketResult>")

    async def _pass(self, request: Request, path: str) -> Response:
        query = request.scope["query_string"].decode()
        url = httpx.URL(f"{self._emulator.base_url}".rstrip("/") + path + (f"?{query}" if query else ""))
        headers = [
            (name, value) for name, value in request.headers.raw if name != b"host"
        ]  # the emulator looks for a bucket there
        sent = self._emulator.build_request(request.method, url, headers=headers, content=await request.body())
        received = await self._emulator.send(sent, stream=True)
        content = b"".join([chunk async for chunk in received.aiter_raw()])
        await received.aclose()
        answer = Response(content, received.status_code)
        kept = [(name.lower(), value) for name, value in received.headers.raw if name.lower().decode() not in HOP_BY_HOP]
        length = received.headers.get("content-length", str(len(content))) if request.method == "HEAD" else str(len(content))
        answer.raw_headers = [*kept, (b"content-length", length.encode())]
        return answer


def _xml(body: str) -> Response:
    return Response(f"<?xml version='1.0' encoding='UTF-8'?>{body}", media_type="application/xml")


def _error(status: int, code: str) -> Response:
    body = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{code}</Message></Error>"
    return Response(body, status, media_type="application/xml")


def main() -> None:
    port, emulator = sys.argv[1:]
    methods = ["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH"]
    routes = [Route("/{path:path}", XmlApi(emulator).answer, methods=methods)]
    uvicorn.run(Starlette(routes=routes), host="127.0.0.1", port=int(port), log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
