"""Each namespace belongs to one shard, and stays there."""

from collections import Counter

from lethe_operator.resources.common import ONLY_SHARD, Shard

NAMESPACES = tuple(f"team-{n}" for n in range(300))


def test_every_namespace_has_one_shard() -> None:
    shards = [Shard(index, 3).of(NAMESPACES) for index in range(3)]

    assert Counter(n for shard in shards for n in shard) == Counter(NAMESPACES)
    assert min(map(len, shards)) > 70


def test_the_shard_of_a_namespace_depends_on_its_name_alone() -> None:
    """Not on the process, the order, or the other namespaces."""
    assert Shard(1, 2).of(["lake", "air", "sales"]) == ("lake", "sales")
    assert Shard(1, 2).of(["sales", "lake"]) == ("sales", "lake")


def test_one_shard_has_all() -> None:
    assert ONLY_SHARD.of(NAMESPACES) == NAMESPACES
