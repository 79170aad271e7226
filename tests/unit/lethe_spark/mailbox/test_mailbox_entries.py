"""What the committer does next: the order of what lies in its mailbox, and what it keeps apart."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from lethe.contract.run import MailboxEntry
from lethe.contract.settings import RunFamily
from lethe_spark.mailbox import (
    SETTLED_FOR_SECONDS,
    UPKEEP_EVERY_SECONDS,
    UPKEEP_LATE_SECONDS,
    UPKEEPS_AT_ONCE,
    Mailbox,
    Post,
    Upkeep,
)

BEGAN = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def an_entry(dataset: str = "a", second: int = 0, run: str = "1", **changes: object) -> str:
    known = {
        "dataset_uid": dataset,
        "run_id": run,
        "family": RunFamily.RESTATEMENT,
        "config_map": f"{dataset}-runs",
        "prefix": run,
        "created_time": BEGAN + timedelta(seconds=second),
    }
    return MailboxEntry.model_validate({**known, **changes}).to_json()


def a_mailbox(**data: str) -> Mailbox[str]:
    made: Mailbox[str] = Mailbox()
    made.put(data)
    return made


def take(mailbox: Mailbox[str], now: float = 0.0) -> str | None:
    """The key, or the Dataset of an upkeep."""
    match mailbox.take(now):
        case Post(key):
            return key
        case Upkeep(dataset_uid):
            return dataset_uid
    return None


def settle(mailbox: Mailbox[str], now: float, left: str | None = None) -> str:
    chosen = mailbox.take(now)
    assert isinstance(chosen, Post)
    mailbox.settled(chosen, now, left)
    return chosen.key


def test_the_oldest_comes_first_whatever_its_key() -> None:
    mailbox = a_mailbox(x=an_entry("a", second=3), y=an_entry("b", second=1), z=an_entry("c", second=2))

    assert [take(mailbox), take(mailbox), take(mailbox), take(mailbox)] == ["y", "z", "x", None]


def test_of_one_dataset_the_next_waits_for_the_one_before() -> None:
    """The order is that in which they were asked for; an Undo must not overtake its Revert."""
    mailbox = a_mailbox(undo=an_entry("a", 2), revert=an_entry("a", 1), other=an_entry("b", 3))
    first = mailbox.take(0)

    assert isinstance(first, Post)
    assert (first.key, take(mailbox), take(mailbox)) == ("revert", "other", None)

    mailbox.settled(first, 0)
    assert take(mailbox) == "undo"


def test_an_unreported_result_delays_the_later_runs_of_its_dataset_and_nothing_else() -> None:
    mailbox = a_mailbox(first=an_entry("a", 1), second=an_entry("a", 2))
    first = mailbox.take(10)
    assert isinstance(first, Post)

    mailbox.put_off(first, until=15)

    assert (take(mailbox, 10), mailbox.next_due(10)) == (None, 5)
    mailbox.put({"first": an_entry("a", 1), "second": an_entry("a", 2), "b": an_entry("b", 9)})
    assert (take(mailbox, 10), take(mailbox, 15)) == ("b", "first")


def test_a_key_that_went_before_its_turn_is_not_carried_out() -> None:
    """So a run is called off."""
    mailbox = a_mailbox(one=an_entry("a", 1), two=an_entry("a", 2))

    mailbox.put({"two": an_entry("a", 2)})

    assert take(mailbox) == "two"


def test_late_news_of_a_key_that_was_taken_out_does_not_start_it_again() -> None:
    """What another key's change tells may be of before."""
    mailbox = a_mailbox(one=an_entry("a"))
    settle(mailbox, 0)

    mailbox.put({"one": an_entry("a"), "two": an_entry("b", 1)})

    assert (take(mailbox), take(mailbox)) == ("two", None)


def test_a_key_that_stays_though_it_was_taken_out_is_carried_out_again_after_a_while() -> None:
    """Somebody has put it there again, word for word."""
    mailbox = a_mailbox(one=an_entry("a"))
    settle(mailbox, 0)

    assert take(mailbox, SETTLED_FOR_SECONDS - 1) is None
    assert mailbox.next_due(SETTLED_FOR_SECONDS - 1) == 1
    assert take(mailbox, SETTLED_FOR_SECONDS) == "one"


def test_another_entry_under_a_key_that_was_taken_out_is_another_run() -> None:
    mailbox = a_mailbox(one=an_entry("a"))
    settle(mailbox, 0)

    mailbox.put({"one": an_entry("a", attempt=2)})

    assert take(mailbox) == "one"


def test_unreadable_keys_are_named_with_the_fields_and_without_their_values() -> None:
    mailbox = a_mailbox()

    bad = mailbox.put(
        {
            "good": an_entry("a"),
            "other-release": an_entry("a", api_version="lethe.dev/run/v9"),
            "wrong": an_entry("a").replace('"attempt":1', '"attempt":"topsecret"'),
            "text": "topsecret",
        }
    )

    assert set(bad) == {"other-release", "wrong", "text"}
    assert "attempt" in bad["wrong"]
    assert "lethe.dev/run/v9" in bad["other-release"]
    assert "topsecret" not in str(bad)
    assert (take(mailbox), take(mailbox)) == ("good", None)


# --- upkeep -----------------------------------------------------------------------------------------------------------------


def test_tidying_up_comes_after_the_runs_that_wait() -> None:
    mailbox = a_mailbox(one=an_entry("a", 1), two=an_entry("b", 2))
    settle(mailbox, 0, left="tidy a")

    assert (take(mailbox), take(mailbox), take(mailbox)) == ("two", "a", None)


def test_tidying_up_is_done_once_for_many_runs_and_no_more_often_than_so() -> None:
    mailbox = a_mailbox(one=an_entry("a", 1), two=an_entry("a", 2))
    assert [settle(mailbox, 0, left="1"), settle(mailbox, 1, left="2")] == ["one", "two"]
    first = mailbox.take(1)
    assert first == Upkeep("a", "2")
    mailbox.kept_up("a")

    mailbox.put({"three": an_entry("a", 3)})
    settle(mailbox, 2, left="3")

    assert (take(mailbox, 3), mailbox.next_due(3)) == (None, UPKEEP_EVERY_SECONDS - 2)
    assert mailbox.take(1 + UPKEEP_EVERY_SECONDS) == Upkeep("a", "3")


def test_a_dataset_that_is_tidied_up_has_no_run_meanwhile() -> None:
    mailbox = a_mailbox(one=an_entry("a", 1))
    settle(mailbox, 0, left="tidy")
    assert take(mailbox) == "a"

    mailbox.put({"two": an_entry("a", 2)})

    assert take(mailbox) is None
    mailbox.kept_up("a")
    assert take(mailbox) == "two"


def test_runs_of_others_do_not_put_tidying_up_off_for_ever() -> None:
    mailbox = a_mailbox(one=an_entry("a", 1), two=an_entry("b", 2), three=an_entry("c", 3))
    settle(mailbox, 0, left="tidy a")
    mailbox.put({"two": an_entry("b", 2), "three": an_entry("c", 3)})

    assert take(mailbox, UPKEEP_LATE_SECONDS - 1) == "two"
    assert take(mailbox, UPKEEP_LATE_SECONDS) == "a"


def test_tidying_up_leaves_threads_for_runs() -> None:
    datasets = [f"d{n}" for n in range(UPKEEPS_AT_ONCE + 1)]
    mailbox = a_mailbox(**{d: an_entry(d, n) for n, d in enumerate(datasets)})
    for _ in datasets:
        settle(mailbox, 0, left="tidy")

    assert [take(mailbox) for _ in datasets] == [*datasets[:UPKEEPS_AT_ONCE], None]
    mailbox.kept_up(datasets[0])
    assert take(mailbox) == datasets[-1]


# --- whatever comes ---------------------------------------------------------------------------------------------------------


@given(
    entries=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=8),
    moves=st.lists(st.sampled_from(["take", "settle", "put off", "tidy", "wait"]), max_size=60),
)
def test_in_whatever_order_things_end_each_is_done_once_in_order_and_no_dataset_twice_at_a_time(
    entries: list[tuple[str, int]], moves: list[str]
) -> None:
    data = {f"k{n}": an_entry(d, second, run=str(n)) for n, (d, second) in enumerate(entries)}
    mailbox = a_mailbox(**data)
    now = 0.0
    open_: list[Post | Upkeep[str]] = []
    done: list[Post] = []
    for move in [*moves, *(["settle", "tidy", "wait", "take"] * 2 * (len(entries) + 1))]:
        match move:
            case "take":
                chosen = mailbox.take(now)
                open_ += [chosen] if chosen is not None else []
            case "wait":
                now += 6
            case "tidy":
                for upkeep in [o for o in open_ if isinstance(o, Upkeep)]:
                    mailbox.kept_up(upkeep.dataset_uid)
                    open_.remove(upkeep)
            case _:
                for post in [o for o in open_ if isinstance(o, Post)][:1]:
                    open_.remove(post)
                    if move == "put off":
                        mailbox.put_off(post, now + 5)
                    else:
                        del data[post.key]
                        mailbox.settled(post, now, "tidy")
                        mailbox.put(data)
                        done.append(post)
        busy = [o.dataset_uid if isinstance(o, Upkeep) else o.entry.dataset_uid for o in open_]
        assert len(busy) == len(set(busy)) == mailbox.under_way

    assert sorted(p.key for p in done) == sorted(f"k{n}" for n in range(len(entries)))
    for dataset in "abc":
        mine = [p.order for p in done if p.entry.dataset_uid == dataset]
        assert mine == sorted(mine)
