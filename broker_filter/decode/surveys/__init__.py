"""Alert packets of surveys, one module a survey."""
