"""What machines have in common that run one rank and leave the others to processes like this."""

from __future__ import annotations

import json
from typing import Any

from tileoverlap.bootstrap import RankProcess
from tileoverlap.cli._machine import Machine

__all__ = ["OneRank"]


class OneRank(Machine):
    """A base beside that of the device."""

    _me: RankProcess

    def ranks_here(self, ranks: int) -> range:
        return range(self._me.rank, self._me.rank + 1)

    def gather(self, mine: Any) -> list[Any]:
        return [json.loads(part) for part in self._me.all_gather(json.dumps(mine).encode())]
