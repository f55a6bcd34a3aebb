"""Verdicts on mathematical answers; `reward.MathReward` is the way in."""
