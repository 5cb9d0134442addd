"""What `pe` prints on consoles, pipes and disks that do not take it."""

import subprocess

from tests.cli.typed import PE, assert_one_sentence, installed


def test_characters_that_a_console_lacks_are_replaced(tmp_path):
    told = installed("doctor", "δ.yaml", cwd=tmp_path, PYTHONIOENCODING="latin-1:strict")
    assert (told.returncode, "Traceback" in told.stderr, "?" in told.stderr) == (2, False, True)


def test_output_that_cannot_be_written_ends_in_one_sentence(finished):
    ended = subprocess.run(
        f"{PE} explain > /dev/full", shell=True, cwd=finished, capture_output=True, text=True
    )
    assert_one_sentence(ended, "No space left on device")


def test_a_pipe_whose_reader_has_left_ends_quietly_and_not_with_status_1(finished):
    line = f"set -o pipefail; {PE} explain --markdown | true"
    ended = subprocess.run(["bash", "-c", line], cwd=finished, capture_output=True, text=True)
    assert (ended.returncode in (0, 141), ended.stderr) == (True, "")
