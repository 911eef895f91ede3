"""What a fit returns: filter, smooth, forecast, summary, save."""
