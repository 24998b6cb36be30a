"""Closed-loop simulation by warping logged bird's-eye frames: `bev/warp`."""
