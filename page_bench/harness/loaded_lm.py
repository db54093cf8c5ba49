"""lm-eval's `hf` model as `page_hf` loads it: what is refused, and what tells it from others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from page_bench.config import PageConfig, is_ours
from page_bench.engine.decision import from_calibration
from page_bench.engine.keys import StoredModel
from page_bench.engine.make_trace import settings_of
from page_bench.gating.calibration import ModelFacts
from page_bench.gating.fingerprint import model_fingerprint
from page_bench.harness import loading
from page_bench.harness.data_parallel import DataParallelLM
from page_bench.inputs.errors import UsageError
from page_bench.model import default_model, given_object, quantization, support
from page_bench.model.given_object import held_by
from page_bench.model.prefill import base_model
from page_bench.model.provenance import provenance
from page_bench.model.rotation import Rotation
from page_bench.records.trace import writable_folder
from page_bench.tasks.tokenizer import tokenizer_name


class LoadedLM(DataParallelLM):
    """A model that can be observed and evicted, with the arm that it is loaded for.

    Args:
        pretrained: as for `hf`; left out, the default model (see `default_model`).
        kwargs: every argument of lm-eval's `hf` model, and those of `config.PageConfig`.

    Raises:
        UsageError: an argument or a model that cannot be run, before weights are loaded where
            that is possible.
    """

    def __init__(self, pretrained: Any = None, **kwargs: Any) -> None:
        self.page = PageConfig.from_arguments({k: v for k, v in kwargs.items() if is_ours(k)})
        arguments = given_object.named({**kwargs, "pretrained": pretrained})
        self._objects = given_object.objects_of(arguments)
        passed_on = {k: held_by(v) for k, v in kwargs.items() if not is_ours(k)}
        passed_on.setdefault("device", "cuda" if torch.cuda.is_available() else "cpu")
        given = held_by(pretrained)
        name = default_model.default_pretrained() if given is None else given
        by_name = isinstance(name, str)
        if not name or not (by_name or hasattr(name, "config")):
            raise UsageError(f"pretrained={name!r:.60} is no model; give the name of one.")
        loading.refuse_unsupported(passed_on, by_name)
        of_weights = {n: passed_on.pop(n) for n in [*passed_on] if quantization.asks(n)}
        self._quantization = quantization.asked_for(of_weights)
        self._for_configuration = loading.configuration_arguments(passed_on)
        if not by_name:
            loading.refuse_unknown(self._for_configuration, None)
            if not passed_on.get("tokenizer"):
                tokenizer_name(name)
        self._asked_length = passed_on.get("max_length")
        if self.page.trace is not None:
            writable_folder(self.page.trace)
        if self.page.calibration is not None:
            from_calibration(self.page)
        self.model_name = loading.full_name(
            name if by_name else given_object.name_of(name), passed_on
        )
        loading.check_adapter(passed_on.get("peft"), passed_on.get("revision") or "main")
        try:
            path = default_model.resolve(name) if by_name else name
            super().__init__(pretrained=path, **passed_on)
        except OSError as error:
            if name == default_model.HUB_ID:
                raise default_model.explain_missing(error) from error
            reason = str(error).strip().partition("\n")[0]
            if by_name and name.startswith(("/", ".", "~")) and not Path(name).is_dir():
                reason = "there is no such folder."
            raise UsageError(f"{self.model_name} could not be loaded: {reason}") from error
        support.check_model(self.model, self._asked_length)
        self._inner = base_model(self.model)
        self._check_shape(self._inner.config)
        self.attn_implementation = str(self._inner.config._attn_implementation)
        loading.check_implementation(self.attn_implementation)
        self._facts: ModelFacts | None = None
        self._stored: StoredModel | None = None

    def _get_config(self, pretrained: str, **kwargs: Any) -> None:
        """Load the configuration, and refuse what cannot be run while no weight is loaded."""
        try:
            super()._get_config(pretrained, **kwargs)
        except ValueError as error:  # a folder of something else, a model that is too new
            reason = str(error).strip().partition("\n")[0]
            raise UsageError(f"{self.model_name} could not be loaded: {reason}") from error
        loading.refuse_unknown(self._for_configuration, self._config)
        support.check_config(self._config, self._asked_length)
        quantization.check_quantization(self._config, self._quantization, str(self.device))
        if self._quantization is not None:
            # From where HFLM passes it on.
            self._config.quantization_config = self._quantization
        # What is set on top of the configuration shows only once the model is loaded.
        if not self._for_configuration:
            self._check_shape(self._config)

    def _create_model(self, pretrained: str, **kwargs: Any) -> None:
        """Load the weights; what transformers and PEFT say of those that do not fit is a reason."""
        try:
            super()._create_model(pretrained, **kwargs)
        except loading.FAILURES as error:
            reason = " ".join(" ".join(map(str, error.args)).split())
            raise UsageError(f"{self.model_name} could not be loaded: {reason}") from error

    def _check_shape(self, config: Any) -> None:
        support.check_gate(config, self.page.gate, self.page.drop_options)
        self.page.make_evictor().check(config.get_text_config())
        support.check_length(config, self._asked_length)

    @property
    def settings(self) -> dict[str, Any]:
        return {
            **provenance(self.model, self.device),
            "model": self.model_name,
            "weights": self.model_facts().fingerprint.weights,
            "dtype": self._dtype_name,
            "attn_implementation": self.attn_implementation,
            # Rope types that change, and the longest sequence that they do not change for.
            "rotation_changes_after": Rotation(self._inner).original_lengths,
            # What no command line can name, so that nobody takes the name above for all there is.
            **({"objects": self._objects} if self._objects else {}),
            **settings_of(self.page),
        }

    @property
    def _dtype_name(self) -> str:
        parts = [str(self._inner.dtype).removeprefix("torch.")]
        if (mixed := self.mixed_precision_dtype) is not None:
            parts.append(f"autocast {str(mixed).removeprefix('torch.')}")
        weights = quantization.weights_name(self._inner, self._config)
        return ", ".join(parts if weights is None else [*parts, weights])

    def model_facts(self) -> ModelFacts:
        """What a calibration must share with this model; computed once."""
        if self._facts is None:
            self._facts = ModelFacts(
                self.model_name,
                model_fingerprint(self.model),
                self._dtype_name,
                self.attn_implementation,
            )
        return self._facts

    def take_for_stored(self, stored: StoredModel) -> None:
        """Keep records as another process's model, which computes them."""
        self._stored = stored

    def stored_model(self) -> StoredModel:
        """What tells this model's records in a store from others'; reads all weights once."""
        if self._stored is None:
            self._stored = StoredModel.of(
                self.model,
                self.tokenizer,
                name=self.model_name,
                dtype=self._dtype_name,
                attn_implementation=self.attn_implementation,
            )
        return self._stored
