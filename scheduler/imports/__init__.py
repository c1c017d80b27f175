"""Hardware from files: read with positions (`documents`), checked against the format (`schema`), compared with what there is (`comparison`).

The service that applies the difference is `scheduler.services.hardware.imports`. docs/operate/inventory.md describes the format.
"""
