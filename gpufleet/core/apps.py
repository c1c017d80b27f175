from django.apps import AppConfig


class CoreConfig(AppConfig):
    name = "gpufleet.core"
    label = "core"
    verbose_name = "gpufleet"

    def ready(self) -> None:
        from gpufleet.core import bulk, form_words, signins

        bulk.lookups_register()
        form_words.words_set()
        signins.connect()
