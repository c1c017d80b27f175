"""Single sign-on in a real browser, which holds the console's own policy against every step of the way."""

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.harness import LiveConsole
from tests.gpufleet.test_sign_on import MINA, Provider, provider, server

__all__ = ["provider", "server"]

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::DeprecationWarning:authlib")]


def test_the_button_leads_to_the_provider_and_back(live_console: LiveConsole, browser: Browser, provider: Provider):
    provider.knows("mina", **MINA)
    visitor = live_console.visit(browser)
    visitor.open("/accounts/login/")

    visitor.page.get_by_role("button", name="Acme").click()
    visitor.page.get_by_placeholder("sub").fill("mina")
    visitor.page.get_by_role("button", name="Authorize", exact=True).click()

    expect(visitor.page.get_by_text("Mina Sato").first).to_be_visible()
    assert visitor.page.url.startswith(live_console.origin)
    assert not [fault for fault in visitor.watch.faults if "Content Security Policy" in fault]
