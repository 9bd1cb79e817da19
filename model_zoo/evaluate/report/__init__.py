"""The written report of an evaluation."""
