"""Reads over HTTPS what clouds publish about prices: verified TLS, the environment's proxies, bounded bytes and time.

``HTTPS_PROXY`` and ``NO_PROXY`` name proxies, ``SSL_CERT_FILE`` other authorities, as for every program with OpenSSL.
"""

from __future__ import annotations

import codecs
import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import IO
from urllib.parse import quote, urlsplit

from gpusonde.catalog.price_lists import REGION, PriceList, read_aws, read_azure
from gpusonde.errors import CloudError

AWS_URL = "https://pricing.us-east-1.amazonaws.com/offers/v1.0/aws/AmazonEC2/current"
AZURE_URL = "https://prices.azure.com/api/retail/prices"

_SILENCE_S = 30.0
_CHUNK_BYTES = 1 << 16
_LONGEST_LINE_BYTES = 1 << 20
_MOST_PAGES = 500
_ADVICE = "nothing was changed; a list that was downloaded elsewhere is read with --from"


@dataclass
class Budget:
    """What one list may cost, over all its pages.

    Attributes:
        most_bytes: Of content; the largest region of AWS has some 300 MB.
        most_seconds: From now to the last byte.
    """

    most_bytes: int = 1 << 30
    most_seconds: float = 900.0
    _bytes_left: int = field(init=False)
    _ends_at: float = field(init=False)

    def __post_init__(self) -> None:
        """Start the clock."""
        self._bytes_left = self.most_bytes
        self._ends_at = time.monotonic() + self.most_seconds

    def spend(self, size: int, url: str) -> None:
        """Take ``size`` bytes off.

        Raises:
            CloudError: They are more than is left, or the time is over.
        """
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise CloudError(f"{url}: is larger than {self.most_bytes:,} bytes; {_ADVICE}")
        if time.monotonic() > self._ends_at:
            raise CloudError(f"{url}: took longer than {self.most_seconds:g} s; {_ADVICE}")


class _HttpsOnly(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if urlsplit(newurl).scheme != "https":
            raise CloudError(f"{req.full_url}: leads to {newurl}, which is not HTTPS; {_ADVICE}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def fetch_aws(region: str, *, url: str = AWS_URL, budget: Budget | None = None) -> PriceList:
    """Read the offer file of a region; nothing is kept but its prices.

    Raises:
        CloudError: It cannot be had.
        CatalogError: What came is no such file.
    """
    address = f"{url}/{_checked(region)}/index.csv"
    return read_aws(_lines(address, budget or Budget()), address)


def fetch_azure(region: str, *, url: str = AZURE_URL, budget: Budget | None = None) -> PriceList:
    """Read the prices of the machines with GPUs (sizes ``N...``) in a region, page by page.

    Raises:
        CloudError: They cannot be had.
        CatalogError: What came are no such pages.
    """
    condition = (
        f"serviceName eq 'Virtual Machines' and armRegionName eq '{_checked(region)}' and priceType eq 'Consumption'"
        " and contains(armSkuName, 'Standard_N')"
    )
    first = f"{url}?$filter={quote(condition)}"
    return read_azure(_pages(first, budget or Budget()), date.today().isoformat(), first)


def _checked(region: str) -> str:
    if not REGION.fullmatch(region):
        raise CloudError(f"{region!r} is no name of a region, such as us-east-1 (AWS) or eastus (Azure)")
    return region


def _pages(first: str, budget: Budget) -> Iterator[object]:
    url, seen = first, set[str]()
    while url:
        if url in seen or len(seen) >= _MOST_PAGES:
            raise CloudError(f"{first}: has no end after {len(seen)} pages; {_ADVICE}")
        seen.add(url)
        content = b"".join(_chunks(url, budget))
        try:
            page: object = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise CloudError(f"{url}: answers with something else than JSON ({error}); {_ADVICE}") from error
        yield page
        link = page.get("NextPageLink") if isinstance(page, Mapping) else None
        url = str(link) if link else ""
        if url and urlsplit(url).hostname != urlsplit(first).hostname:
            raise CloudError(f"{first}: goes on at {url}, another host; {_ADVICE}")


def _lines(url: str, budget: Budget) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    for chunk in _chunks(url, budget):
        *lines, rest = (rest + decoder.decode(chunk)).split("\n")
        for line in lines:
            yield line + "\n"
        if len(rest) > _LONGEST_LINE_BYTES:
            raise CloudError(f"{url}: has a line of more than {_LONGEST_LINE_BYTES:,} bytes; {_ADVICE}")
    if rest:
        yield rest


def _chunks(url: str, budget: Budget) -> Iterator[bytes]:
    """Yield the content of an address, as it comes."""
    if urlsplit(url).scheme != "https":
        raise CloudError(f"{url}: is not HTTPS; {_ADVICE}")
    opener = urllib.request.build_opener(
        _HttpsOnly(), urllib.request.HTTPSHandler(context=ssl.create_default_context())
    )
    request = urllib.request.Request(  # noqa: S310 - checked above
        url, headers={"Accept-Encoding": "identity", "User-Agent": "gpusonde"}
    )
    received = 0
    try:
        with opener.open(request, timeout=_SILENCE_S) as response:
            declared = response.headers.get("Content-Length", "")
            if declared.isdecimal():
                budget.spend(int(declared), url)
            # read1 returns with what one packet brings, so that drops cannot hold us beyond our time.
            while chunk := response.read1(_CHUNK_BYTES):
                received += len(chunk)
                budget.spend(0 if declared.isdecimal() else len(chunk), url)
                yield chunk
    except urllib.error.HTTPError as error:
        error.close()
        raise CloudError(f"{url}: answers {error.code} {error.reason}; {_ADVICE}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise CloudError(f"{url}: {reason}; is there a network (a proxy: HTTPS_PROXY)? {_ADVICE}") from error
    if declared.isdecimal() and received != int(declared):
        raise CloudError(f"{url}: ended after {received:,} of {int(declared):,} bytes; {_ADVICE}")
