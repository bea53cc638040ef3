"""``python -m fairsched.cli`` is ``fairsched``."""

from __future__ import annotations

from fairsched.cli import main

if __name__ == "__main__":
    main()
