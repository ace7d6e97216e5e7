"""The two commands, as a person types them."""

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from fixture_database import ROOT

ENVIRONMENT = {**os.environ, "TUNEMARK_ROOT": str(ROOT), "PYTHONUNBUFFERED": "1"}


def tunemark(*words: str) -> subprocess.CompletedProcess[str]:
    code = "from tunemark.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False, env=ENVIRONMENT)


def test_build_prints_the_number_of_pages(built_by_command: Path) -> None:
    output = (built_by_command / "output.txt").read_text(encoding="utf-8")
    assert "pages; view them with `tunemark site serve`" in output
    assert "\x1b" not in output
    assert (built_by_command / "site" / "index.html").is_file()


def test_an_unwritable_place_is_a_usage_error_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for place in (tmp_path / "file", tmp_path / "file" / "inside"):
        done = tunemark("site", "build", "--out", str(place))
        assert done.returncode == 2
        assert re.fullmatch(
            r"tunemark: --out: '.*': cannot be written \((File exists|Not a directory)\); name a folder of yours\n", done.stderr
        )


def test_serve_answers_on_this_machine_and_ends_with_ctrl_c(built: Path) -> None:
    # A test run in the background of a shell ignores Ctrl-C, and so would its child.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from tunemark.cli import main; main()"
    command = [sys.executable, "-c", code, "site", "serve", "--port", "0", "--out", str(built)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split(" on ")[1].split()[0]
            assert address.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(address) as answer:  # noqa: S310 - our own server
                assert b"Tunemark" in answer.read()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=10)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (0, "stopped\n", "")
