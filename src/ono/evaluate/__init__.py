"""Measure a trained operator: errors, calibration, other resolutions, predictions."""
