"""The steps of a release, in their order; each knows only the steps before it.

`select -> validate -> plan -> quantize -> stage -> rollout -> canary -> shift -> record`
"""
