"""headway brings a promoted model to all of its traffic, step by step and with proof.

The package never imports Airflow. Start reading at `headway.ports` (what the world can do),
`headway.release` (the steps of a release) and `headway.wiring` (where adapters are chosen).
"""

__version__ = "0.1.0"
