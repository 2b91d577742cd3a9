"""A local web page that shows runs and a live fleet. It reads; it starts, stops and changes nothing."""
