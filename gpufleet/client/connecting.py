"""`gpufleet connect`: how to get into a running job."""

from collections.abc import Sequence

from gpufleet.client import DONE
from gpufleet.client.commands import console_meant, ends_well, parser_of, print_json
from gpufleet.client.words import plain


@ends_well
def connect(arguments: Sequence[str]) -> int:
    """Tell how to connect to a running job: a shell, its port, and the token that its service asks for."""
    asked = parser_of("connect", connect.__doc__, jobs="1").parse_args(arguments)
    told = console_meant().post(f"/jobs/{asked.job}/connect", {})
    if asked.json:
        return print_json(told)
    print(f"Its first worker runs on {plain(told['host'])}.")
    for step in told["steps"]:
        print(f"{plain(step['label'])}:\n  {plain(step['line'])}")
    if told["url"]:
        print(f"Then open:\n  {plain(told['url'])}")
    return DONE
