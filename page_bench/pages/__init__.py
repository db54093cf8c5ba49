"""Pieces of pages and figures that report and leaderboard share."""
