"""The pytest plugin, as an author's own test run sees it."""

import subprocess
import sys

import pytest

pytest_plugins = "pytester"


def test_the_fixture_is_there_without_any_import(pytester: pytest.Pytester):
    pytester.makepyfile(
        """
        def test_it_answers(platform):
            platform().chat(script=["Good ", "day."]).assert_text("Good day.")

        def test_two_hosts_at_once(platform):
            first, second = platform(), platform(model={"plugin": "scripted", "reply": "two"})
            assert first.url != second.url
            second.chat("hi").assert_text("two")
        """
    )
    pytester.runpytest_inprocess().assert_outcomes(passed=2)


def test_a_rule_is_tested_from_its_module_in_ten_lines(pytester: pytest.Pytester):
    pytester.makepyfile(
        my_rule="""
        from tandem.core.plugin import Action, Rule, SafePoint, hookimpl

        def check(event, task, sup):
            return Action.give_up("Bye.") if "secret" in event.answer else None

        @hookimpl
        def tandem_rules():
            return [Rule("my_rule", at=SafePoint.SP2, check=check)]
        """,
        test_my_rule="""
        import my_rule

        def test_it_acts(platform):
            host = platform(rules=["my_rule"], plugins=[my_rule])
            host.chat(script=["a secret. "]).assert_text("a secret. Bye.")

        def test_it_is_wrong(platform):
            host = platform(rules=["my_rule"], plugins=[my_rule])
            host.chat(script=["a secret. "]).assert_text("a secret.")
        """,
    )
    pytester.syspathinsert()
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*is:        'a secret. Bye.'", "*should be: 'a secret.'"])


def test_a_failing_test_closes_its_host_too(pytester: pytest.Pytester):
    pytester.makepyfile(
        """
        import threading

        def test_it_breaks(platform):
            platform().chat(script=["x"]).assert_text("y")

        def test_nothing_is_left():
            assert [t.name for t in threading.enumerate() if t.name in ("test-server", "tandem-engine")] == []
        """
    )
    pytester.runpytest_inprocess().assert_outcomes(passed=1, failed=1)


def test_a_broken_plugin_is_reported_with_its_reason(pytester: pytest.Pytester):
    pytester.makepyfile(
        """
        from tandem.core.plugin import Client, hookimpl

        class Odd:
            TANDEM_API = ">=9"

            @hookimpl
            def tandem_clients(self):
                return [Client(name="odd", build=lambda options: None)]

        def test_it_starts(platform):
            platform(clients=["odd"], plugins=[Odd()])
        """
    )
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*clients.odd: written for Tandem's plugin API >=9, but this is *"])


def test_the_plugin_costs_a_test_run_without_it_next_to_nothing():
    """It loads in every run of pytest, so neither torch nor the server may come with it."""
    code = (
        "import sys, tandem.testing.plugin; "
        "print([m for m in ('torch', 'numpy', 'uvicorn', 'starlette', 'httpx2', 'tandem.core') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
