"""Images drawn from captions, and captions evolved as text."""

from adapters.caption_then_draw.adapter import CaptionThenDraw as CaptionThenDraw
