"""Figures for people: terminal, JSON, CSV and one HTML page."""
