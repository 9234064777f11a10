"""The hub."""

from pathlib import Path
from typing import Any

from portico.contract import Facade
from portico.hub.card import write_model_card
from portico.hub.uploads import create_repository, finish_uploads, upload_checkpoint, upload_run


class HubMethods(Facade):
    """How the facade describes and uploads what it trained.

    Attributes:
        hub_model_id: Full name of the repository, once there is one.
        push_in_progress: Uploads started while training.
    """

    hub_model_id: str | None = None
    push_in_progress: Any = None

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Make the repository named by ``args.hub_model_id``, from one process.

        Args:
            token: Token that may write; by default ``args.hub_token``.
            private: Whether a new repository is private; by default ``args.hub_private_repo``.
        """
        if self.is_world_process_zero():
            create_repository(self, token, private)

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
    ) -> None:
        """Write a draft of a model card, ``README.md`` in the output folder, from one process.

        Args:
            language: Language of the model.
            license: License; by default that of the model fine-tuned.
            tags: Tags; those of a card that is there are kept.
            model_name: Name of the model; by default that of the output folder.
            finetuned_from: Model fine-tuned; by default where the model came from.
            tasks: Identifiers of its tasks.
            dataset_tags: Tags of its data sets.
            dataset: Identifiers of its data sets.
            dataset_args: Configurations of its data sets.
        """
        if self.is_world_process_zero():
            write_model_card(
                self,
                language=language,
                license=license,
                tags=tags,
                model_name=model_name,
                finetuned_from=finetuned_from,
                tasks=tasks,
                dataset_tags=dataset_tags,
                dataset=dataset,
                dataset_args=dataset_args,
            )

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Save the model, write its card and upload the output folder.

        Args:
            commit_message: Message of the commit.
            blocking: Return only when the upload is done.
            token: Token that may write; by default ``args.hub_token``.
            revision: Branch to commit to; by default ``args.hub_revision``.
            private: Whether a new repository is private; by default ``args.hub_private_repo``.
            **kwargs: Arguments of :meth:`create_model_card`.

        Returns:
            What the hub says of the commit, or a future of that where ``blocking`` is false; ``None`` on processes
            other than the first.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        model_name = kwargs.pop("model_name", None)
        if model_name is None and self.args.should_save:
            model_name = (self.args.hub_model_id or Path(self.args.output_dir).name).split("/")[-1]
        token = self.args.hub_token if token is None else token
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        own_tags = getattr(self.model, "model_tags", None)
        if own_tags is not None:
            kwargs["tags"] = _with_tags(kwargs.get("tags", []), own_tags)
        self.create_model_card(model_name=model_name, **kwargs)
        self._finish_current_push()
        return upload_run(
            self,
            commit_message=commit_message,
            token=token,
            revision=self.args.hub_revision if revision is None else revision,
            blocking=blocking,
        )

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        upload_checkpoint(self, checkpoint_folder)

    def _finish_current_push(self) -> None:
        finish_uploads(self)


def _with_tags(tags: str | list[str], more: list[str]) -> list[str]:
    known = [tags] if isinstance(tags, str) else tags
    return known + [tag for tag in more if tag not in known]
