"""Audit"""
