"""What the builders of hybrid decoders (gated delta rule beside attention) share. No plugin itself."""
