"""What every builder of Hugging Face checkpoints reads the same way. Shared by model plugins; no plugin itself."""
