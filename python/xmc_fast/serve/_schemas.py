"""The bodies of requests and answers, as OpenAPI shows them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

Text = str | dict[str, str]


class SuggestRequest(BaseModel):
    """One text or a batch of them."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"text": "how long do eggs keep?", "k": 3}}
    )

    text: Text | None = Field(None, description="One text: a string, or its columns by name.")
    texts: list[Text] | None = Field(None, description="A batch, instead of `text`.")
    k: int = Field(5, ge=1, description="Most labels per text.")
    threshold: float | None = Field(
        None, allow_inf_nan=False, description="Leave out labels of a smaller probability."
    )
    explain: int = Field(0, ge=0, le=100, description="Terms to give for each suggestion; 0: none.")

    @model_validator(mode="after")
    def _one_of_both(self) -> SuggestRequest:
        if (self.text is None) == (self.texts is None):
            raise ValueError("give either text or texts")
        return self

    @property
    def batch(self) -> list[Text]:
        """The texts, whichever way they came."""
        return [self.text] if self.text is not None else self.texts or []


class ExplainRequest(BaseModel):
    """A text and a label of the model."""

    model_config = ConfigDict(extra="forbid")

    text: Text
    label: str | None = Field(None, description="By default the best one of the text.")
    top: int = Field(30, ge=1, le=1000, description="Terms to give.")


class Suggestion(BaseModel):
    label: str
    probability: float = Field(description="The raw score where the model has no probabilities.")
    explanation: dict[str, Any] | None = Field(None, description="With `explain` only.")


class Suggestions(BaseModel):
    """The suggestions of one text, best first; none where the model knows no term of it."""

    suggestions: list[Suggestion]


class SuggestResponse(BaseModel):
    model: str
    results: list[Suggestions] = Field(description="One for each text, in order.")


class Label(BaseModel):
    label: str
    rows: int | None = Field(description="Training rows that have it.")


class Problem(BaseModel):
    """The body of every error."""

    detail: str
