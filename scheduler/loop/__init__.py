"""What the scheduling loop runs by: policy, measures and the calibration of forecasts."""
