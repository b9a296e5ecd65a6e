"""Events on a pool: what ``kubectl describe`` lists. The same event again is counted, not repeated."""

import hashlib
import logging
from time import monotonic

from rrq_operator.api.spec import API_VERSION, KIND
from rrq_operator.cluster.kube import Kube, KubeConflict, KubeError, KubeMissing, events_path
from rrq_operator.decide.manifests import MANAGER, Manifest
from rrq_operator.decide.objects import PoolKey, format_time

logger = logging.getLogger(__name__)

_QUIET_SECONDS = 60.0
_MOST_REMEMBERED = 5_000
_LONGEST_MESSAGE = 1000


class Events:
    """Writes events, each at most once a minute."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._told: dict[str, tuple[float, int]] = {}

    async def tell(
        self, key: PoolKey, uid: str, reason: str, message: str, now: float, *, is_warning: bool = False
    ) -> bool:
        """Write an event, or count it when it was written before; returns whether it can be read now.

        Trouble is logged and no more: events are a courtesy.
        """
        namespace, pool = key
        message = message[:_LONGEST_MESSAGE]
        digest = hashlib.sha256(f"{uid}\0{reason}\0{message}".encode()).hexdigest()[:16]
        at, count = self._told.get(digest, (0.0, 0))
        if count and monotonic() - at < _QUIET_SECONDS:
            return True
        log = logger.warning if is_warning else logger.info
        log(message, extra={"namespace": namespace, "resource": pool, "reason": reason})
        event = _build_event(
            key, uid, f"{pool}.{digest}", reason, message, format_time(now), is_warning=is_warning
        )
        try:
            count = await self._write(event, count)
        except KubeError as error:
            logger.warning("event not written", extra={"resource": pool, "error": str(error)})
            return False
        if len(self._told) >= _MOST_REMEMBERED:
            del self._told[next(iter(self._told))]
        self._told.pop(digest, None)
        self._told[digest] = monotonic(), count
        return True

    async def _write(self, event: Manifest, count: int) -> int:
        """Write an event that was written ``count`` times by us; returns how often it was by now."""
        path = events_path(event["metadata"]["namespace"])
        own_path = f"{path}/{event['metadata']['name']}"
        try:
            if not count:
                await self._kube.create(path, event)
                return 1
        except KubeConflict:
            # Written before this operator started; it goes on counting.
            count = int((await self._kube.read(own_path)).get("count") or 1)
        try:
            again = {"count": count + 1, "lastTimestamp": event["lastTimestamp"]}
            await self._kube.merge(own_path, again)
            return count + 1
        except KubeMissing:  # events expire after an hour
            await self._kube.create(path, event)
            return 1


def _build_event(
    key: PoolKey, uid: str, name: str, reason: str, message: str, now: str, *, is_warning: bool
) -> Manifest:
    namespace, pool = key
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": namespace,
            "name": pool,
            "uid": uid,
        },
        "type": "Warning" if is_warning else "Normal",
        "reason": reason,
        "message": message,
        "source": {"component": MANAGER},
        "reportingComponent": MANAGER,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
