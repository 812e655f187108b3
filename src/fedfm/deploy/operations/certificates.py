"""The certificates of a running server: announced before they expire, and when they are renewed."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

from fedfm.deploy.events import (
    CertificateExpires,
    CertificateProblem,
    CertificateRenewed,
    emit,
)
from fedfm.deploy.keys.certificates import (
    Expiry,
    list_expiries,
    read_fingerprint,
    read_names,
)
from fedfm.deploy.keys.renewal import Renewed

DAY = timedelta(days=1)


class CertificateWatcher:
    """Watches the authority's and the server's certificate in the server's folder of keys."""

    def __init__(self, folder: Path) -> None:
        files = [folder / name for name in ("ca.pem", "server.pem", "server.key")]
        self.newest = Renewed(files, lambda certificate, key: list_expiries(folder), _refuse)
        self.expiries: list[Expiry] = self.newest()
        """When the certificates in use expire."""
        self.announced: datetime | None = None

    def describe(self) -> list[Mapping[str, str]]:
        """Return when the certificates in use expire, as plain values."""
        return [{"file": e.file.name, "expires": e.expires.isoformat()} for e in self.expiries]

    def require_valid(self, moment: datetime) -> None:
        """Refuse certificates that have expired."""
        for each in self.expiries:
            each.require_valid(moment)

    def poll(self, moment: datetime) -> None:
        """Tell of a new certificate at once, and once a day of those that expire soon."""
        newest = self.newest()
        if newest is not self.expiries:
            self.expiries, self.announced = newest, None
            _tell_renewed(newest[-1])
        if self.announced is None or moment - self.announced >= DAY:
            self.announced = moment
            for each in filter(lambda each: each.is_due(moment), self.expiries):
                emit(CertificateExpires(str(each.file), each.expires.isoformat(), each.remedy))


def _tell_renewed(server: Expiry) -> None:
    names, sha256 = read_names(server.file), read_fingerprint(server.file)
    emit(CertificateRenewed(str(server.file), names, server.expires.isoformat(), sha256))


def _refuse(certificate: Path, reason: str) -> None:
    emit(CertificateProblem(str(certificate), reason))
